"""Write tasks: the write of one request's rows into the pool.

Locks and events of a task are made on demand, since most tasks are finished before anyone waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache.gather import distinct_tickets, gather_writes
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.records import (
    BudgetTicket,
    FrozenTask,
    PageEvent,
    Part,
    PoolWrite,
    Run,
    WriteChunk,
)
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.sync import STANDARD, LockLike, Sync

IntArray = np.ndarray

_FINAL = (TaskState.WRITTEN, TaskState.FAILED)
_ON_HOST = (TaskState.HOST_READY, *_FINAL)


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
