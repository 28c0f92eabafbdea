"""What a set of write tasks puts into the pool, and what a reader finds in a task before that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from palimpsest.errors import PrefixCacheError
from palimpsest.prefix_cache.records import BudgetTicket, FrozenTask, KeyWrite, Part, PoolWrite, Rows, WriteRecord

if TYPE_CHECKING:
    from palimpsest.prefix_cache.tasks import WriteTask

IntArray = np.ndarray


class _Span(NamedTuple):
    record: WriteRecord
    start: int
    stop: int
    tids: IntArray


def distinct_tickets(tasks: Iterable[WriteTask]) -> list[BudgetTicket]:
    """The tickets of the tasks' records, each once, in order."""
    lists = {id(run[0]): run[0] for task in tasks for run in task.runs}
    return list(dict.fromkeys(r.budget for records in lists.values() for r in records if r.budget is not None))


def records_of(tasks: Iterable[WriteTask]) -> list[WriteRecord]:
    """The records that the tasks' rows stand in, each once."""
    lists = {id(run[0]): run[0] for task in tasks for run in task.runs}
    return list(dict.fromkeys(record for records in lists.values() for record in records))


def gather_writes(tasks: Iterable[WriteTask]) -> PoolWrite:
    """The rows that `tasks` have to write, gathered per key; neighbours in a record stay one piece."""
    tasks = list(tasks)
    if len(tasks) == len(tasks[0].group.tasks) and not tasks[0].group.disturbed:
        return _whole_step(tasks)
    spans = _spans([task for task in tasks if not task.abandoned])
    robbed = [task for task in tasks if task.reassigned]
    keys = dict.fromkeys(key for span in spans for key in _host(span.record))
    writes = [_key_write(key, [span for span in spans if key in _host(span.record)], robbed) for key in keys]
    return PoolWrite(tuple(task.tid for task in tasks), writes)


def _whole_step(tasks: list[WriteTask]) -> PoolWrite:
    """The rows of all immediate tasks of a step, which are its record as it stands."""
    record, row_tids = tasks[0].runs[0][0][0], tasks[0].group.row_tids
    assert row_tids is not None
    writes = [KeyWrite(key, record.slots_cpu, rows, row_tids) for key, rows in _host(record).items()]
    return PoolWrite(tuple(task.tid for task in tasks), writes)


def _host(record: WriteRecord) -> Rows:
    return record.tensors if record.host is None else record.host


def _spans(tasks: list[WriteTask]) -> list[_Span]:
    """The tasks' rows in the order of their records, neighbouring rows of a record as one span."""
    shares: dict[int, list[tuple[int, int, int]]] = {}
    lists: dict[int, list[WriteRecord]] = {}
    for task in tasks:
        for records, start, stop in task.runs:
            lists[id(records)] = records
            shares.setdefault(id(records), []).append((start, stop, task.tid))
    spans = [
        _Span(record, start, stop, tids)
        for number, records in lists.items()
        for start, stop, tids in _neighbours(sorted(shares[number]))
        for record in records
    ]
    return sorted(spans, key=lambda span: span.record.serial) if len(spans) > 1 else spans


def _neighbours(shares: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, IntArray]]:
    """Runs of shares that stand side by side: first row, row after the last, and the task of each row."""
    first = 0
    for here in range(1, len(shares) + 1):
        if here == len(shares) or shares[here][0] != shares[here - 1][1]:
            run = shares[first:here]
            tids = np.repeat([tid for _, _, tid in run], [stop - start for start, stop, _ in run])
            yield run[0][0], run[-1][1], tids
            first = here


def _key_write(key: str, spans: list[_Span], robbed: list[WriteTask]) -> KeyWrite:
    slots = _cat([span.record.slots_cpu[span.start : span.stop] for span in spans])
    rows = _cat([_host(span.record)[key][span.start : span.stop] for span in spans])
    tids = spans[0].tids if len(spans) == 1 else np.concatenate([span.tids for span in spans])
    keep = np.arange(tids.size) if robbed or len(spans) > 1 else None
    for task in robbed:
        if keep is not None and (lost := task.reassigned.get(key)) is not None:
            keep = keep[~((tids[keep] == task.tid) & np.isin(slots.numpy()[keep], lost.numpy()))]
    if keep is not None and len(spans) > 1:
        keep = keep[_last_of_each(slots.numpy()[keep])]
    if keep is None or keep.size == tids.size:
        return KeyWrite(key, slots, rows, tids)
    index = torch.from_numpy(keep)
    return KeyWrite(key, slots[index], rows[index], tids[keep])


def _cat(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _last_of_each(slots: IntArray) -> IntArray:
    """The position of the last row of each slot, in order."""
    _, from_the_end = np.unique(slots[::-1], return_index=True)
    return np.sort(slots.size - 1 - from_the_end)


def find_rows(task: WriteTask | FrozenTask, slots: torch.Tensor, key: str) -> torch.Tensor:
    """A copy, on the host, of the rows of `key` that `task` holds for `slots`; the last chunk wins.

    Raises `PrefixCacheError` when the task has no row for one of them.
    """
    parts = [part for part in task.parts if key in _host(part[0])]
    held = np.concatenate([record.slots_cpu.numpy()[start:stop] for record, start, stop in parts] or [_NONE])
    order = np.argsort(held, kind="stable")
    wanted = slots.numpy()
    place = np.searchsorted(held, wanted, side="right", sorter=order) - 1
    found = order[place] if held.size else np.full(wanted.size, -1)
    if held.size == 0 or not np.array_equal(held[found], wanted):
        raise PrefixCacheError(f"task {task.tid} holds no row of key {key!r} for some of slots {wanted.tolist()[:8]}")
    return _pick(parts, key, found)


_NONE = np.empty(0, dtype=np.int64)


def _pick(parts: list[Part], key: str, found: IntArray) -> torch.Tensor:
    """Rows number `found` of the parts laid end to end, copied to the host part by part."""
    ends = np.cumsum([stop - start for _, start, stop in parts])
    which = np.searchsorted(ends, found, side="right")
    out: torch.Tensor | None = None
    for number in np.unique(which).tolist():
        record, _, stop = parts[number]
        at = np.flatnonzero(which == number)
        rows = _rows_at(record, key, torch.from_numpy(found[at] - (ends[number] - stop)))
        if out is None:
            out = torch.empty((found.size, *rows.shape[1:]), dtype=rows.dtype)
        out[torch.from_numpy(at)] = rows
    assert out is not None
    return out


def _rows_at(record: WriteRecord, key: str, index: torch.Tensor) -> torch.Tensor:
    """Rows of a record, from the host where they are there, else from where they were frozen."""
    # The committer sets `host` before it lets go of `tensors`: read in the other order.
    tensors, host = record.tensors, record.host
    rows = (tensors if host is None else host)[key]
    if rows.device.type == "cpu":
        return rows.index_select(0, index)
    if record.ready is not None:
        torch.accelerator.current_stream(rows.device.index).wait_event(record.ready)
    return rows.index_select(0, index.to(rows.device)).cpu()
