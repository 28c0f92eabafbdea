"""What a set of write tasks puts into the pool, and what a reader finds in a task before that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch

from palimpsest.errors import PrefixCacheError
from palimpsest.prefix_cache.group import TaskGroup, tids_of, whole
from palimpsest.prefix_cache.records import BudgetTicket, FrozenTask, KeyWrite, Part, PoolWrite, WriteRecord

if TYPE_CHECKING:
    from palimpsest.prefix_cache.tasks import WriteTask

IntArray = np.ndarray


Cuttable = TypeVar("Cuttable", torch.Tensor, IntArray)


class _Span(NamedTuple):
    """The rows `start` to `stop` of each of some records, and the task of each row of one of them."""

    records: list[WriteRecord]
    start: int
    stop: int
    tids: IntArray


def distinct_tickets(tasks: Iterable[WriteTask]) -> list[BudgetTicket]:
    """The tickets of the tasks' records, each once, in order."""
    return list(dict.fromkeys(record.budget for record in records_of(tasks) if record.budget is not None))


def records_of(tasks: Iterable[WriteTask]) -> list[WriteRecord]:
    """The records that the tasks' rows stand in, each once."""
    lists = {id(records): records for task in tasks for records, _, _ in task.runs}
    return list(dict.fromkeys(record for records in lists.values() for record in records))


def gather_writes(tasks: Collection[WriteTask]) -> PoolWrite:
    """The rows that `tasks` have to write, gathered per key; neighbours in a record stay one piece."""
    if (group := whole(tasks)) is not None and (run := group.whole_step()) is not None:
        return _whole_step(group, run[0][0])
    tids = tuple(tids_of(tasks))
    spans = _spans([task for task in tasks if not task.group.abandoned])
    robbed = [task for task in tasks if task.reassigned]
    keys = dict.fromkeys(key for span in spans for record in span.records for key in record.at_hand)
    return PoolWrite(tids, [_key_write(key, spans, robbed) for key in keys])


def _whole_step(group: TaskGroup, record: WriteRecord) -> PoolWrite:
    """The rows of all immediate tasks of a step, which are its record as it stands."""
    assert group.row_tids is not None
    writes = [KeyWrite(key, record.slots_cpu, record.at, rows, group.row_tids) for key, rows in record.at_hand.items()]
    return PoolWrite(tuple(group.tids), writes)


def _spans(tasks: list[WriteTask]) -> list[_Span]:
    """The tasks' rows, neighbouring rows of a record as one span, a task's earlier rows before its later ones."""
    shares: dict[int, list[tuple[int, int, int]]] = {}
    lists: dict[int, list[WriteRecord]] = {}
    for task in tasks:
        for records, start, stop in task.runs:
            lists[id(records)] = records
            shares.setdefault(id(records), []).append((start, stop, task.tid))
    spans = [
        _Span(records, start, stop, tids)
        for number, records in lists.items()
        for start, stop, tids in _neighbours(sorted(shares[number]))
    ]
    return sorted(spans, key=lambda span: span.records[0].serial) if len(spans) > 1 else spans


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
    """The rows of `key` in `spans`: of a slot that is there more than once the last, and none taken over."""
    having = [(span, [record for record in span.records if key in record.at_hand]) for span in spans]
    at = np.concatenate([_cut(record.at, span) for span, records in having for record in records])
    rows = _cat([_cut(record.at_hand[key], span) for span, records in having for record in records])
    tids = np.concatenate([np.tile(span.tids, len(records)) for span, records in having])
    keep: IntArray | None = None
    for task in robbed:
        if (lost := task.reassigned.get(key)) is not None:
            keep = np.arange(tids.size) if keep is None else keep
            keep = keep[~((tids[keep] == task.tid) & np.isin(at[keep], lost.numpy()))]
    if len(having) > 1 or len(having[0][1]) > 1:
        last = _last_of_each(at if keep is None else at[keep])
        if last is not None:
            keep = last if keep is None else keep[last]
    if keep is not None and keep.size < tids.size:
        at, rows, tids = at[keep], rows[torch.from_numpy(keep)], tids[keep]
    return KeyWrite(key, torch.from_numpy(at), at, rows, tids)


def _cut(rows: Cuttable, span: _Span) -> Cuttable:
    return rows if span.start == 0 and span.stop == rows.shape[0] else rows[span.start : span.stop]


def _cat(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _last_of_each(slots: IntArray) -> IntArray | None:
    """The position of the last row of each slot, in order; None when no slot is there twice."""
    in_order = np.sort(slots)  # several times cheaper than to look for the places of what is unique
    if not (in_order[1:] == in_order[:-1]).any():
        return None
    _, from_the_end = np.unique(slots[::-1], return_index=True)
    return np.sort(slots.size - 1 - from_the_end)


def find_rows(task: WriteTask | FrozenTask, slots: torch.Tensor, key: str) -> torch.Tensor:
    """A copy, on the host, of the rows of `key` that `task` holds for `slots`; the last chunk wins.

    Raises `PrefixCacheError` when the task has no row for one of them.
    """
    parts = [part for part in task.parts if key in part[0].at_hand]
    held = np.concatenate([record.at[start:stop] for record, start, stop in parts] or [_NONE])
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
