"""The write side: who takes write tasks to the pool, and when.

In eager mode the engine thread is its own committer; otherwise a committer thread is woken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch

from palimpsest.actions import action
from palimpsest.errors import ShutdownError
from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.committer import Committer
from palimpsest.prefix_cache.gather import find_rows
from palimpsest.prefix_cache.group import tids_of
from palimpsest.prefix_cache.interface import PrefixCacheConfig, WriteSchedule
from palimpsest.prefix_cache.records import BudgetTicket, FrozenTask, WriteChunk
from palimpsest.prefix_cache.sets import as_group, in_state
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.taskboard import _tids
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.sync import STANDARD, Deadline, Sync
from palimpsest.trace import Sink

__all__ = [
    "OmniPrefixCacheController",
    "PrefixCacheController",
    "StagingBufferHolder",
    "TaskState",
    "WriteSchedule",
    "WriteTask",
    "_BudgetTicket",
    "_WriteChunk",
]

COMMITTER_NAME = "palimpsest-committer"


class PrefixCacheController(Committer):
    """Takes write tasks to the pool and publishes a record of each that finished.

    `eager` runs them on the calling thread; otherwise a committer thread is started. `join` and
    `join_host_ready` wait at most `config.staging_claim_timeout_s`.
    """

    def __init__(
        self,
        pool: PrefixBlockPool,
        config: PrefixCacheConfig,
        eager: bool = False,
        *,
        pinned: bool = False,
        sync: Sync = STANDARD,
        trace: Sink | None = None,
        stats: Stats | None = None,
    ) -> None:
        super().__init__(pool, config, pinned=pinned, sync=sync, trace=trace, stats=stats or Stats())
        self._eager = eager
        #: tids whose copy stage is claimed and whose rows are not in the pool; the committer's own
        self._blocked: list[int] = []
        #: pool writes held back until the end of an eager run; None outside one (engine thread only)
        self._gathered: list[WriteTask] | None = None
        self._committer = None if eager else sync.thread(self._commit_loop, COMMITTER_NAME)
        if self._committer is not None:
            self._committer.start()

    @property
    def eager(self) -> bool:
        """Whether writes run on the calling thread."""
        return self._eager

    @action("dispatch")
    def dispatch(self, tasks: Collection[WriteTask]) -> None:
        """Hand QUEUED tasks to the committer; in eager mode write them before returning."""
        with self._work:
            if self._closing:  # shutdown may have failed them since they were published
                tasks = [task for task in tasks if task.state is TaskState.QUEUED]
            self._queue_lo.extend(tids_of(tasks))
            if self._trace is not None:
                self._trace.emit("dispatch", {"tids": _tids(tasks)}, self._queues())
            self._work.notify()
        if self._eager:
            self._run_all()

    @action("escalate")
    def escalate(self, tids: Iterable[int]) -> None:
        """Have tasks written soon: PENDING ones are queued high, QUEUED ones move up, others are left alone."""
        with self._work:
            raised = [task for tid in tids if (task := self._tasks.get(tid)) is not None and self._raise(task)]
            if self._trace is not None and raised:
                self._trace.emit("escalate", {"tids": _tids(raised)}, self._queues())
            self._work.notify()
        if self._eager and raised:
            self._run_all()

    def fetch_host(self, task: WriteTask | FrozenTask, slots: torch.Tensor, key: str) -> torch.Tensor:
        """A copy of the rows of `key` that `task` holds for `slots`, after its step's copies have landed."""
        if task.step_d2h_event is not None:
            task.step_d2h_event.synchronize()
        return find_rows(task, slots, key)

    # ---------------------------------------------------------------- eager

    def _run_all(self) -> None:
        """Take what is queued highest to the pool on this thread, in one pool write.

        The first error fails those that are not written, and is raised.
        """
        tasks, self._gathered = self.claim_copy(), []
        error = self._attempt(lambda: self._gather(tasks))
        gathered, self._gathered = as_group(self._gathered), None
        error = self._attempt(lambda: self.host_ready(gathered)) or error
        ready = in_state(gathered, TaskState.HOST_READY)
        if ready:
            error = self._attempt(lambda: self._write_pool(ready)) or error
        if error is not None:
            self._fail_all(tasks, error)
            raise error

    def _attempt(self, stage: Callable[[], None]) -> BaseException | None:
        """The error of a stage, if any: what earlier tasks of a run have reached is finished all the same."""
        try:
            stage()
        except BaseException as error:
            return error
        return None

    def _gather(self, tasks: list[WriteTask]) -> None:
        self._copy_to_host(tasks)
        for task in tasks:
            self._run_eager(task)

    def _run_eager(self, task: WriteTask) -> None:
        """Take a task to the pool on this thread; within a run, together with the run's other tasks."""
        if self._gathered is None:
            if not self.claim_copy(task):
                return
            self._copy_to_host([task])
            self.host_ready([task])
        self._scatter(task)

    def _scatter(self, task: WriteTask) -> None:
        """Write a HOST_READY task to the pool; within an eager run, have it written at the run's end."""
        if self._gathered is None:
            self._write_pool([task])
        else:
            self._gathered.append(task)

    # ---------------------------------------------------------------- the committer thread

    def _commit_loop(self) -> None:
        try:
            while self._wait_for_work():
                self._process(self.claim_copy())
        except BaseException as error:
            self._die(error)

    def _wait_for_work(self) -> bool:
        with self._work:
            while not (self._queue_hi or self._queue_lo or self._closing):
                self._work.wait()
            return bool(self._queue_hi or self._queue_lo)

    def _process(self, tasks: list[WriteTask]) -> None:
        try:
            if tasks:
                self._copy_to_host(tasks)
                self.host_ready(tasks)
                self._blocked += [task.tid for task in tasks]
                self._scatter_host_ready()
        except Exception as error:
            self._blocked.clear()
            self._fail_all(tasks, error)

    def _scatter_host_ready(self) -> None:
        """Write those claimed tasks whose rows are on the host; the others stay blocked."""
        ready = [
            task
            for tid in self._blocked
            if (task := self._tasks.get(tid)) is not None and task.state is TaskState.HOST_READY
        ]
        if ready:
            self._write_pool(ready)
            written = {task.tid for task in ready}
            self._blocked[:] = [tid for tid in self._blocked if tid not in written]

    def _die(self, error: BaseException) -> None:
        with self._lock:
            self._closing = True
        self._fail_all(self.unfinished(), error)

    # ---------------------------------------------------------------- end

    def shutdown(self) -> list[str]:
        """Finish what is queued within the bound, fail the rest, stop the committer.

        Gives the names of threads that a stuck copy keeps; their memory stays.
        """
        with self._work:
            self._closing = True
            self._work.notify_all()
        self._staging_pool.close()
        if self._committer is not None:
            self.slow.within(Deadline(self._sync, self._timeout_s), self._ends, self._who_ends)
        self._fail_all(self.unfinished(), ShutdownError("the cache was shut down"))
        stuck = self._committer is not None and self._committer.is_alive()
        return [COMMITTER_NAME] if stuck else []

    def _ends(self, seconds: float) -> bool:
        assert self._committer is not None
        self._committer.join(seconds)
        return not self._committer.is_alive()

    def _who_ends(self) -> str:
        return f"shutdown waits for the committer: {', '.join(map(str, self.unfinished()[:4])) or self._who_writes()}"

    def check(self) -> list[str]:
        """What contradicts itself: charges without a clone, pages held by finished tasks."""
        live = {StagingBufferHolder("task", task.tid) for task in self.unfinished()}
        return self._check_budget() + [
            f"{held}, which is finished" for held, holder in self._staging_pool.holds() if holder.kind == "task"
            and holder not in live
        ]  # fmt: skip

    def _who_writes(self) -> str:
        if self._committer is None:
            return f"the engine thread writes (eager); {super()._who_writes()}"
        return f"the committer {'runs' if self._committer.is_alive() else 'is dead'}; {super()._who_writes()}"


OmniPrefixCacheController = PrefixCacheController
_BudgetTicket = BudgetTicket
_WriteChunk = WriteChunk
