"""Write tasks: the write of one request's rows into the pool."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache.gather import distinct_tickets, gather_writes
from palimpsest.prefix_cache.group import STATES, TaskGroup
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.records import BudgetTicket, FrozenTask, PageEvent, Part, Run, WriteChunk
from palimpsest.sync import STANDARD

IntArray = np.ndarray

_FINAL = (TaskState.WRITTEN, TaskState.FAILED)
_ON_HOST = (TaskState.HOST_READY, *_FINAL)
_COPYING, _HOST_READY = int(TaskState.COPYING), int(TaskState.HOST_READY)


class WriteTask:
    """One request's write: PENDING, QUEUED, COPYING, HOST_READY, WRITTEN; or FAILED.

    A place in a `TaskGroup`, which holds all that is known of it. `state` is guarded by the task lock, which
    tasks of one board share. `host_ready` and `done` are events for whoever waits; `done` is set only after
    the completion or failure record was published.
    """

    __slots__ = ("group", "place")

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
        self.place = 0
        self.group = TaskGroup(range(tid, tid + 1), [req_id], [write_n], schedule, STANDARD.lock(), STANDARD)
        self.group.give_rows([[([chunk.record], chunk.start, chunk.stop) for chunk in chunks]])
        self.group.staging_slot, self.group.step_d2h_event = staging_slot, step_d2h_event
        self.group.tasks = [self]

    @property
    def tid(self) -> int:
        """The task's number, never used twice."""
        return self.group.tids[self.place]

    @property
    def req_id(self) -> str:
        """Whose rows these are."""
        return self.group.req_ids[self.place]

    @property
    def write_n(self) -> int:
        """The step of an immediate write; how many deferred writes the request has had, this one included."""
        return self.group.write_ns[self.place]

    @property
    def state(self) -> TaskState:
        """Where the task is in its life cycle."""
        return STATES[self.group.states[self.place]]

    @state.setter
    def state(self, state: TaskState) -> None:
        self.group.states[self.place] = state

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

    @property
    def runs(self) -> list[Run]:
        """The task's rows, run by run; fixed once the task is no longer PENDING."""
        return self.group.runs_of(self.place)

    @property
    def reassigned(self) -> dict[str, torch.Tensor]:
        """Per key, the slots that a later claim took over."""
        return self.group.reassigned.get(self.place, {})

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
            return self._event("host_ready", self.state in _ON_HOST)

    @property
    def done(self) -> threading.Event:
        """Set once the task is written or failed and its record is published."""
        with self.group.lock:
            return self._event("done", bool(self.group.woken[self.place]))

    def _event(self, name: str, is_over: bool) -> threading.Event:
        event = self.group.events.get((name, self.place))
        if event is None:
            event = self.group.events[name, self.place] = self.group.sync.event()
            if is_over:
                event.set()
        return event

    def is_finished(self) -> bool:
        """Whether waiters of `done` are or would be awake."""
        if self.group.woken[self.place]:
            return True
        done = self.group.events.get(("done", self.place))
        return done is not None and done.is_set()

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
        group, place = self.group, self.place
        if group.states[place] != _COPYING:
            advance(self.state, TaskState.HOST_READY)
        group.states[place] = _HOST_READY
        if group.events and (event := group.events.get(("host_ready", place))) is not None:
            event.set()

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
        group, place = self.group, self.place
        group.woken[place] = True
        return [event for name in ("host_ready", "done") if (event := group.events.get((name, place))) is not None]

    def append_chunk(self, chunk: WriteChunk) -> TaskState | None:
        """Add rows to a task that is still PENDING; otherwise give the state that closed it."""
        with self.group.lock:
            if self.state is not TaskState.PENDING:
                return self.state
            self.runs.append(([chunk.record], chunk.start, chunk.stop))
            return None

    def add_reassigned(self, key: str, slots: torch.Tensor) -> None:
        """Note that a later claim took `slots` over, so that this task no longer writes them."""
        lost = self.group.reassigned.setdefault(self.place, {})
        lost[key] = torch.cat([lost[key], slots]) if key in lost else slots.clone()
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
