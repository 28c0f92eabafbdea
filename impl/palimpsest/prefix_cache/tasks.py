"""Write tasks: the write of one request's rows into the pool, and the records that hold those rows.

A step's rows stay one `WriteRecord`; a `WriteChunk` is a task's share of it, a range of rows. Locks and
events of a task are made on demand, since most tasks are finished before anyone waits for them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from palimpsest.errors import PrefixCacheError
from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.sync import STANDARD, LockLike, Sync

IntArray = np.ndarray
Rows = dict[str, torch.Tensor]

_FINAL = (TaskState.WRITTEN, TaskState.FAILED)
_ON_HOST = (TaskState.HOST_READY, *_FINAL)


class PageEvent(Protocol):
    """Tells when a step's device copies have landed."""

    def synchronize(self) -> None: ...


class BudgetTicket:
    """The charge of one device clone against the byte budget, given back with its last task."""

    __slots__ = ("holders", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        #: the tasks that keep the clone; guarded by the task lock
        self.holders: set[int] = set()


class WriteRecord:
    """The rows that one step writes with one schedule, as the device and the host have them."""

    __slots__ = ("budget", "host", "ready", "serial", "slots_cpu", "tensors")

    _SERIALS = itertools.count(1)

    def __init__(
        self,
        slots_cpu: torch.Tensor,
        tensors: Rows,
        host: Rows | None = None,
        budget: BudgetTicket | None = None,
    ) -> None:
        self.slots_cpu, self.tensors, self.host, self.budget = slots_cpu, tensors, host, budget
        #: records in the order of their steps
        self.serial = next(self._SERIALS)
        #: tells when device rows may be read by another stream; None on the host
        self.ready: torch.Event | None = None

    def release_tensors(self) -> None:
        """Let go of the device rows; the host rows must be there."""
        self.tensors = {}


class WriteChunk:
    """The rows `start` to `stop` of a record: what one task writes of one step."""

    __slots__ = ("record", "start", "stop")

    def __init__(
        self,
        *,
        slots_cpu: torch.Tensor,
        tensors: Rows,
        host: Rows | None = None,
        budget: BudgetTicket | None = None,
    ) -> None:
        self.record = WriteRecord(slots_cpu, tensors, host, budget)
        self.start, self.stop = 0, slots_cpu.numel()

    @classmethod
    def of(cls, record: WriteRecord, start: int, stop: int) -> WriteChunk:
        """A share of `record`, without copying."""
        chunk = cls.__new__(cls)
        chunk.record, chunk.start, chunk.stop = record, start, stop
        return chunk

    @property
    def slots_cpu(self) -> torch.Tensor:
        """The slots of these rows, int64 on the host."""
        return self.record.slots_cpu[self.start : self.stop]

    @property
    def tensors(self) -> Rows:
        """The rows as they were frozen at save, by key."""
        return self._share(self.record.tensors)

    @property
    def host(self) -> Rows | None:
        """The rows on the host, by key; None until they are there."""
        return None if self.record.host is None else self._share(self.record.host)

    @host.setter
    def host(self, rows: Rows) -> None:
        self.record.host = rows

    @property
    def budget(self) -> BudgetTicket | None:
        """The charge of the clone that these rows are a part of."""
        return self.record.budget

    def _share(self, rows: Mapping[str, torch.Tensor]) -> Rows:
        return {key: value[self.start : self.stop] for key, value in rows.items()}


#: a record and the range of its rows that one task writes
Part = tuple[WriteRecord, int, int]


#: The same rows of several records: what one task writes of consecutive steps of an unchanged batch. The list
#: of records is shared by the batch's tasks and grows with each step; the numbers are a range of rows.
Run = tuple[list[WriteRecord], int, int]


class FrozenTask(NamedTuple):
    """A task's rows as they were when a read was planned on them."""

    tid: int
    parts: tuple[Part, ...]
    step_d2h_event: PageEvent | None


class TaskGroup:
    """What tasks have in common: the immediate ones of a step, or all deferred ones.

    The immediate tasks of a step mostly move through their life cycle together; then `tasks` itself is handed
    from action to action, and what is the same for all of them is here, made once.
    """

    __slots__ = (
        "disturbed",
        "holders",
        "lock",
        "row_tids",
        "schedule",
        "staging_slot",
        "step_d2h_event",
        "sync",
        "tasks",
    )

    def __init__(
        self,
        schedule: WriteSchedule,
        staging_slot: int | None,
        step_d2h_event: PageEvent | None,
        lock: LockLike,
        sync: Sync,
    ) -> None:
        self.schedule, self.staging_slot, self.step_d2h_event = schedule, staging_slot, step_d2h_event
        self.lock, self.sync = lock, sync
        #: the immediate tasks of the step; empty for deferred ones
        self.tasks: list[WriteTask] = []
        #: the task of each row of the step, and the tasks' holds of the staging page
        self.row_tids: IntArray | None = None
        self.holders: list[StagingBufferHolder] = []
        #: whether a later claim or a reset took rows over; guarded by the task lock
        self.disturbed = False


_NOTHING_LOST: dict[str, torch.Tensor] = {}


class WriteTask:
    """One request's write: PENDING, QUEUED, COPYING, HOST_READY, WRITTEN; or FAILED.

    `state` is guarded by the task lock, which tasks of one board share. `host_ready` and `done` are events
    for whoever waits; `done` is set only after the completion or failure record was published.
    """

    # Class attributes are the defaults of what few tasks ever set: making a task is on the hot path.
    state = TaskState.PENDING
    #: per key, the slots that a later claim took over; guarded by the task lock
    reassigned: dict[str, torch.Tensor] = _NOTHING_LOST
    #: whether a reset took every row over; guarded by the task lock
    abandoned = False
    #: what the pool write of this task's batch wrote, for the commit; set before the record
    landed: PoolWrite | None = None
    _host_ready: threading.Event | None = None
    _done: threading.Event | None = None
    _finished = False

    def __init__(
        self,
        tid: int,
        req_id: str,
        write_n: int,
        schedule: WriteSchedule,
        chunks: Iterable[WriteChunk],
        staging_slot: int | None = None,
        step_d2h_event: PageEvent | None = None,
    ) -> None:
        self.tid, self.req_id, self.write_n = tid, req_id, write_n
        #: guarded by the task lock while the task is PENDING, fixed afterwards
        self.runs: list[Run] = [([chunk.record], chunk.start, chunk.stop) for chunk in chunks]
        self.group = TaskGroup(schedule, staging_slot, step_d2h_event, STANDARD.lock(), STANDARD)

    @classmethod
    def of(cls, tid: int, req_id: str, write_n: int, run: Run, group: TaskGroup) -> WriteTask:
        """A task of one run of a group."""
        task = cls.__new__(cls)
        task.tid, task.req_id, task.write_n, task.runs, task.group = tid, req_id, write_n, [run], group
        return task

    @property
    def schedule(self) -> WriteSchedule:
        """When the write must have landed."""
        return self.group.schedule

    @property
    def staging_slot(self) -> int | None:
        """The staging page that the rows land on; None for deferred rows."""
        return self.group.staging_slot

    @property
    def step_d2h_event(self) -> PageEvent | None:
        """Tells when the rows have landed; None when they have."""
        return self.group.step_d2h_event

    def __str__(self) -> str:
        return f"task {self.tid} ({self.schedule.value}) of request {self.req_id!r}, state={self.state.name}"

    @property
    def parts(self) -> list[Part]:
        """The task's rows, a record and a range for each step that added some."""
        return [(record, start, stop) for records, start, stop in self.runs for record in records]

    @property
    def chunks(self) -> list[WriteChunk]:
        """The task's rows, one chunk per step that added some."""
        return [WriteChunk.of(*part) for part in self.parts]

    @property
    def host_ready(self) -> threading.Event:
        """Set once the rows are on the host, or the task has failed."""
        with self.group.lock:
            if self._host_ready is None:
                self._host_ready = self.group.sync.event()
                if self.state in _ON_HOST:
                    self._host_ready.set()
            return self._host_ready

    @property
    def done(self) -> threading.Event:
        """Set once the task is written or failed and its record is published."""
        with self.group.lock:
            if self._done is None:
                self._done = self.group.sync.event()
                if self._finished:
                    self._done.set()
            return self._done

    def is_finished(self) -> bool:
        """Whether waiters of `done` are or would be awake."""
        return self._finished or (self._done is not None and self._done.is_set())

    def is_final(self) -> bool:
        """Whether the task is written or failed."""
        return self.state in _FINAL

    def transition(self, state: TaskState) -> None:
        """Take one step of the life cycle. Raises `IllegalTransitionError`."""
        with self.group.lock:
            self.state = advance(self.state, state)

    def claim_copy(self) -> bool:
        """Claim the copy stage; False for all but the first who asks of a queued task."""
        with self.group.lock:
            if self.state is not TaskState.QUEUED:
                return False
            self.state = TaskState.COPYING
            return True

    def mark_host_ready(self) -> None:
        """The rows are on the host: COPYING becomes HOST_READY and `host_ready` is set.

        Called by the one claimant of the copy stage, which holds the task lock if others know the task.
        """
        if self.state is not TaskState.COPYING:
            advance(self.state, TaskState.HOST_READY)
        self.state = TaskState.HOST_READY
        if self._host_ready is not None:
            self._host_ready.set()

    def mark_done(self) -> None:
        """The rows are in the pool and the record is published: wake who waits for `done`."""
        if self.state is not TaskState.WRITTEN:
            self.transition(TaskState.WRITTEN)
        self.wake()

    def mark_failed(self) -> bool:
        """Fail the task and wake its waiters; False when it was final already."""
        if not self.fail():
            return False
        self.wake()
        return True

    def fail(self) -> bool:
        """Fail the task without waking anyone; False when it was final already."""
        with self.group.lock:
            if self.state in _FINAL:
                return False
            self.state = TaskState.FAILED
            return True

    def wake(self) -> None:
        """Set the events; the record must be published."""
        with self.group.lock:
            events = self.finish()
        for event in events:
            event.set()

    def finish(self) -> Sequence[threading.Event]:
        """Mark the task as finished, for a caller that holds the task lock; gives the events to set."""
        self._finished = True
        if self._done is None and self._host_ready is None:
            return ()
        return [event for event in (self._host_ready, self._done) if event is not None]

    def append_chunk(self, chunk: WriteChunk) -> TaskState | None:
        """Add rows to a task that is still PENDING; otherwise give the state that closed it."""
        with self.group.lock:
            if self.state is not TaskState.PENDING:
                return self.state
            self.runs.append(([chunk.record], chunk.start, chunk.stop))
            return None

    def add_reassigned(self, key: str, slots: torch.Tensor) -> None:
        """Note that a later claim took `slots` over, so that this task no longer writes them."""
        known = self.reassigned.get(key)
        lost = slots.clone() if known is None else torch.cat([known, slots])
        self.reassigned = {**self.reassigned, key: lost}
        self.group.disturbed = True

    def lost_any(self, key: str, slots: IntArray) -> bool:
        """Whether one of `slots` was taken over from this task."""
        lost = self.reassigned.get(key)
        return lost is not None and bool(np.isin(slots, lost.numpy()).any())

    def scatter_rows(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """What this task writes, one (key, slots, host rows) per key: the last chunk of a slot wins, and
        rows taken over are left out."""
        return [(write.key, write.slots, write.rows) for write in gather_writes([self]).writes]

    def budget_tickets(self) -> list[BudgetTicket]:
        """The distinct tickets of this task's chunks, in order."""
        return distinct_tickets([self])

    def frozen(self) -> FrozenTask:
        """The task's rows as they are now, for a read that may be fetched later."""
        return FrozenTask(self.tid, tuple(self.parts), self.step_d2h_event)


class KeyWrite(NamedTuple):
    """Rows of one key to write into the pool, and the task of each."""

    key: str
    slots: torch.Tensor
    rows: torch.Tensor
    tids: IntArray


class PoolWrite(NamedTuple):
    """One pool write of a set of tasks: one entry per key."""

    tids: tuple[int, ...]
    writes: list[KeyWrite]


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
