"""What is known of write tasks: who is registered, queued, finished or failed, and the bytes they hold.

The board owns the task lock. Engine and readers come here to queue tasks and to charge the byte budget; they
wait for tasks in `joins`, and the committer's side is `committer`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.errors import BudgetExceededError
from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache.gather import distinct_tickets
from palimpsest.prefix_cache.group import tids_of, whole
from palimpsest.prefix_cache.interface import PrefixCacheConfig
from palimpsest.prefix_cache.records import BudgetTicket, PoolWrite
from palimpsest.prefix_cache.sets import fire
from palimpsest.prefix_cache.slow_waits import SlowWaits
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.sync import LockLike, Sync
from palimpsest.trace import Sink

IntArray = np.ndarray


class TaskBoard:
    """Registered tasks, their queues and records, and the byte budget."""

    def __init__(self, config: PrefixCacheConfig, sync: Sync, trace: Sink | None, stats: Stats) -> None:
        self._sync, self._trace, self.stats = sync, trace, stats
        self._timeout_s, self.budget_bytes = config.staging_claim_timeout_s, config.gpu_staging_bytes
        #: warns of waits that last
        self.slow = SlowWaits(config.slow_wait_s)
        self._lock = sync.lock()
        self._work = sync.condition(self._lock)
        #: registered and not yet drained, by tid; guarded by the task lock
        self._tasks: dict[int, WriteTask] = {}
        #: queued tids, escalated ones first; guarded by the task lock
        self._queue_hi: deque[int] = deque()
        self._queue_lo: deque[int] = deque()
        #: records not yet drained, in order; guarded by the task lock
        self._completed: list[int] = []
        #: the pool writes of the tasks in `_completed`; guarded by the task lock
        self._landed: list[PoolWrite] = []
        self._failed: list[int] = []
        self._causes: dict[int, BaseException] = {}
        #: the first task whose failure record was taken; guarded by the task lock
        self._lost: WriteTask | None = None
        #: bytes charged for live device clones; guarded by the task lock
        self._staged_bytes = 0
        #: no more work is taken; guarded by the task lock
        self._closing = False
        #: grows when a task stops being PENDING or loses rows: then open deferred tasks must be looked at
        #: again before rows are added to them; guarded by the task lock
        self.disturbances = 0

    @property
    def lock(self) -> LockLike:
        """The task lock, which the tasks of one board share."""
        return self._lock

    # ---------------------------------------------------------------- registering and queueing

    def get_task(self, tid: int) -> WriteTask | None:
        """The task, or None once it was drained."""
        return self._tasks.get(tid)

    def submit(self, task: WriteTask, queued: bool) -> None:
        """Register a task; `queued` makes it QUEUED, ready for `dispatch`."""
        with self._lock:
            self.register([task], queued)

    def register(self, tasks: Collection[WriteTask], queued: bool) -> None:
        """As `submit`, of several tasks, for a caller that holds the task lock."""
        if queued:
            fire(tasks, "queue")
        self._tasks.update(zip(tids_of(tasks), tasks, strict=True))

    def _raise(self, task: WriteTask) -> bool:
        if task.state is TaskState.PENDING:
            task.state = advance(task.state, TaskState.QUEUED)
            self.disturbances += 1
        elif task.state is not TaskState.QUEUED or task.tid in self._queue_hi:
            return False
        elif task.tid in self._queue_lo:
            self._queue_lo.remove(task.tid)
        self._queue_hi.append(task.tid)
        return True

    def take_records(self) -> tuple[list[WriteTask], list[PoolWrite], list[WriteTask]]:
        """The tasks written, what they wrote, and the tasks failed since the last call; they are no longer
        registered.

        The caller holds the task lock.
        """
        completed, self._completed = self._completed, []
        landed, self._landed = self._landed, []
        failed, self._failed = self._failed, []
        pop = self._tasks.pop
        written = [task for tid in completed if (task := pop(tid, None)) is not None]
        lost = [task for tid in failed if (task := pop(tid, None)) is not None]
        if lost and self._lost is None:
            self._lost = lost[0]
        if written and written == (group := written[0].group).tasks:
            group.tasks = []  # nobody needs the group's list any more: let go of it without the garbage collector
        return written, landed, lost

    def has_records(self) -> bool:
        """Whether there are records that were not taken yet."""
        return bool(self._completed or self._failed)

    def has_failed(self) -> bool:
        """Whether a write has failed, its record taken or not."""
        return bool(self._failed) or self._lost is not None

    def cause_of(self, tid: int) -> BaseException | None:
        """Why a task failed, where that is known."""
        return self._causes.get(tid)

    def abandon_all(self) -> None:
        """Take every row over from the registered tasks: they write nothing any more. The caller holds the
        task lock."""
        for task in self._tasks.values():
            task.group.abandoned = task.group.disturbed = True
        self.disturbances += 1

    def take_over(self, tid: int, key: str, slots: IntArray) -> None:
        """Note that a later claim took rows over from a registered task. The caller holds the task lock."""
        self.disturbances += 1
        if (task := self._tasks.get(tid)) is not None:
            task.add_reassigned(key, torch.from_numpy(slots))

    def unfinished(self) -> list[WriteTask]:
        """The registered tasks that are neither written nor failed."""
        with self._lock:
            return [task for task in self._tasks.values() if not task.is_final()]

    def unfinished_tids(self) -> list[int]:
        """The numbers of `unfinished` tasks, for a caller that holds the task lock."""
        return [tid for tid, task in self._tasks.items() if not task.is_final()]

    def told(self, tids: Iterable[int]) -> list[str]:
        """Those of the tasks that are registered, with request and state, in words."""
        with self._lock:
            return [str(task) for tid in tids if (task := self._tasks.get(tid)) is not None]

    # ---------------------------------------------------------------- budget

    @action("reserve")
    def reserve(self, nbytes: int) -> bool:
        """Charge `nbytes` if they fit. Raises `BudgetExceededError` when they never will."""
        if nbytes > self.budget_bytes:
            raise BudgetExceededError(
                f"one step's deferred rows take {nbytes} bytes, and gpu_staging_bytes is {self.budget_bytes}"
            )
        with self._lock:
            fits = self._staged_bytes + nbytes <= self.budget_bytes
            if fits:
                self._staged_bytes += nbytes
            if self._trace is not None:
                self._trace.emit("reserve", {"nbytes": nbytes, "fits": fits}, {"staged_bytes": self._staged_bytes})
            return fits

    @action("unreserve")
    def unreserve(self, nbytes: int) -> None:
        """Give back a charge that no task holds."""
        with self._lock:
            self._staged_bytes -= nbytes
            if self._trace is not None:
                self._trace.emit("unreserve", {"nbytes": nbytes}, {"staged_bytes": self._staged_bytes})

    def pin_budget(self, ticket: BudgetTicket, tid: int) -> None:
        """Let task `tid` hold the charge of `ticket`."""
        with self._lock:
            ticket.holders.add(tid)

    def _release_staged_bytes(self, task: WriteTask) -> None:
        with self._lock:
            self._release_tickets([task])

    def _release_tickets(self, tasks: Collection[WriteTask]) -> None:
        """Let tasks leave their tickets, for a caller that holds the task lock."""
        group = whole(tasks)
        if not tasks or (group is not None and group.row_tids is not None):
            return  # a step's immediate rows are not charged
        charged = [ticket for ticket in distinct_tickets(tasks) if ticket.holders]
        # tickets of consecutive steps have their holders in common
        for holders in {id(ticket.holders): ticket.holders for ticket in charged}.values():
            holders.difference_update(tids_of(tasks))
        self._staged_bytes -= sum(ticket.nbytes for ticket in charged if not ticket.holders)

    def _check_budget(self) -> list[str]:
        with self._lock:
            due = sum(ticket.nbytes for ticket in distinct_tickets(self._tasks.values()) if ticket.holders)
            if due == self._staged_bytes:
                return []
            return [f"{self._staged_bytes} bytes are charged, and live clones take {due}"]

    # ---------------------------------------------------------------- events

    def _queues(self) -> dict[str, Any]:
        return {"hi": list(self._queue_hi), "lo": list(self._queue_lo)}

    def _records(self) -> dict[str, Any]:
        return {"completed": list(self._completed), "failed": list(self._failed)}


def _tids(tasks: Collection[WriteTask]) -> list[int]:
    return list(tids_of(tasks))
