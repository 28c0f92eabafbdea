"""The write side: the committer takes tasks to the pool and publishes a record of each.

Immediate tasks of a step and deferred tasks of an escalation travel as sets: each committer action takes
a non-empty set of tasks, and the rows of a set reach the pool in one write per key. In eager mode the
engine thread is its own committer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from palimpsest.actions import action
from palimpsest.errors import ShutdownError
from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache import events
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.copies import Copies
from palimpsest.prefix_cache.interface import PrefixCacheConfig, WriteSchedule
from palimpsest.prefix_cache.staging import StagingBufferHolder, StagingPool
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.taskboard import TaskBoard, _states, _tids
from palimpsest.prefix_cache.tasks import (
    BudgetTicket,
    FrozenTask,
    WriteChunk,
    WriteRecord,
    WriteTask,
    find_rows,
    gather_writes,
    records_of,
)
from palimpsest.sync import STANDARD, Sync
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


class PrefixCacheController(TaskBoard):
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
        super().__init__(config, sync, trace, stats or Stats())
        self._pool, self._eager = pool, eager
        self._copies = Copies(self._timeout_s, sync)
        self._staging_pool = StagingPool(config, pinned=pinned, sync=sync, trace=trace, stats=self.stats)
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

    @property
    def staging(self) -> StagingPool:
        """The staging pages."""
        return self._staging_pool

    @action("dispatch")
    def dispatch(self, tasks: Collection[WriteTask]) -> None:
        """Hand QUEUED tasks to the committer; in eager mode write them before returning."""
        with self._work:
            if self._closing:  # shutdown may have failed them since they were published
                tasks = [task for task in tasks if task.state is TaskState.QUEUED]
            self._queue_lo.extend([task.tid for task in tasks])
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

    # ---------------------------------------------------------------- committer actions

    @action("claim_copy")
    def claim_copy(self, only: WriteTask | None = None) -> list[WriteTask]:
        """Pop what is queued highest (an escalation, or one step's tasks), or `only` that task, and claim its
        copy stage."""
        with self._lock:
            popped = self._pop() if only is None else self._dequeue(only)
            queued, copying = TaskState.QUEUED, TaskState.COPYING
            claimed = popped
            if any(task.state is not queued for task in popped):
                claimed = [task for task in popped if task.state is queued]
            for task in claimed:
                task.state = copying
            if self._trace is not None and claimed:
                self._trace.emit("claim_copy", {"tids": _tids(claimed)}, self._queues())
            return claimed

    def _pop(self) -> list[WriteTask]:
        tasks, low = self._tasks, self._queue_lo
        if self._queue_hi:
            popped = [tasks[tid] for tid in self._queue_hi if tid in tasks]
            self._queue_hi.clear()
            return popped
        popped = []
        while low:
            task = tasks.get(low[0])
            if popped and task is not None and task.group is not popped[0].group:
                break
            low.popleft()
            if task is not None:
                popped.append(task)
        return popped

    def _copy_to_host(self, tasks: Collection[WriteTask]) -> None:
        """Wait until the tasks' rows are on the host, copying deferred clones there."""
        for event in {task.group.step_d2h_event for task in tasks}:
            if event is not None:
                event.synchronize()
        pending = [self._copy_record(record) for record in records_of(tasks) if record.host is None]
        for record, host, landed in pending:
            if landed is not None:
                landed.synchronize()
            record.host = host

    def _copy_record(self, record: WriteRecord) -> tuple[WriteRecord, Any, Any]:
        return (record, *self._copies.to_host(record.tensors))

    @action("host_ready")
    def host_ready(self, tasks: Collection[WriteTask]) -> None:
        """COPYING becomes HOST_READY; the tasks give their tickets back."""
        ready: list[WriteTask] = []
        with self._lock:
            try:
                for task in tasks:
                    task.mark_host_ready()
                    ready.append(task)
            finally:
                self._release_tickets(ready)
                if self._trace is not None and ready:
                    post = {"tasks": _states(ready), "staged_bytes": self._staged_bytes}
                    self._trace.emit("host_ready", {"tids": _tids(ready)}, post)

    @action("begin_pool_write")
    def begin_pool_write(self, tasks: list[WriteTask]) -> None:
        """Decide which rows of the tasks are written: one per slot, none that was taken over."""
        with self._lock:
            write = gather_writes(tasks)
            for task in tasks:
                task.landed = write
            if self._trace is not None:
                post = {"rows": events.pool_rows(self._trace, write)}
                self._trace.emit("begin_pool_write", {"tids": list(write.tids)}, post)

    def _write_pool(self, tasks: list[WriteTask]) -> None:
        """Write the rows of HOST_READY tasks, one write per key, then publish and wake."""
        self.begin_pool_write(tasks)
        write = tasks[0].landed
        assert write is not None
        for key, slots, rows, _ in write.writes:
            self._pool.write(key, slots, rows)
        self._release_pages(tasks)
        self.complete(tasks)
        self.wake(tasks)

    @action("complete")
    def complete(self, tasks: list[WriteTask]) -> None:
        """HOST_READY becomes WRITTEN and the completion records are published; nobody is woken yet."""
        with self._lock:
            ready, written = TaskState.HOST_READY, TaskState.WRITTEN
            for task in tasks:
                task.state = written if task.state is ready else advance(task.state, written)
            self._completed += [task.tid for task in tasks]
            if self._trace is not None:
                self._trace.emit("complete", {"tids": _tids(tasks)}, self._records())

    @action("wake")
    def wake(self, tasks: Collection[WriteTask]) -> None:
        """Wake who waits for these tasks; their records are published."""
        with self._lock:
            waited_for = [event for task in tasks for event in task.finish()]
            if self._trace is not None:
                self._trace.emit("wake", {"tids": _tids(tasks)}, {"tasks": _states(tasks)})
        for event in waited_for:
            event.set()

    def _release_pages(self, tasks: list[WriteTask]) -> None:
        for group in dict.fromkeys(task.group for task in tasks):
            if group.staging_slot is not None:
                whole = len(tasks) == len(group.tasks)
                mine = group.holders if whole else [_holder(task) for task in tasks if task.group is group]
                self._staging_pool.release_page(group.staging_slot, mine)

    # ---------------------------------------------------------------- failure

    def _fail_task(self, tid: int, cause: BaseException | None = None) -> None:
        task = self._tasks.get(tid)
        if task is not None:
            self._fail_all([task], cause)

    def _fail_all(self, tasks: Iterable[WriteTask], cause: BaseException | None) -> None:
        """Fail what is not final: release, publish the record, then wake."""
        failed = self.fail(tasks, cause)
        if failed:
            self._release_pages(failed)
            self.record_failure(failed)
            self.wake(failed)

    @action("fail")
    def fail(self, tasks: Iterable[WriteTask], cause: BaseException | None) -> list[WriteTask]:
        """Mark tasks that are not final as FAILED and give their tickets back; gives those."""
        with self._lock:
            failed = [task for task in tasks if not task.is_final()]
            for task in failed:
                task.state = advance(task.state, TaskState.FAILED)
                self.disturbances += 1
                if cause is not None:
                    self._causes[task.tid] = cause
            self._release_tickets(failed)
            if self._trace is not None and failed:
                post = {"tasks": _states(failed), "staged_bytes": self._staged_bytes}
                self._trace.emit("fail", {"tids": _tids(failed)}, post)
            return failed

    @action("record_failure")
    def record_failure(self, tasks: list[WriteTask]) -> None:
        """Publish the failure records; nobody is woken yet."""
        with self._lock:
            self._failed += [task.tid for task in tasks]
            if self._trace is not None:
                self._trace.emit("record_failure", {"tids": _tids(tasks)}, self._records())

    # ---------------------------------------------------------------- eager

    def _run_all(self) -> None:
        """Take what is queued highest to the pool on this thread, in one pool write.

        The first error fails those that are not written, and is raised.
        """
        tasks, self._gathered = self.claim_copy(), []
        error = self._attempt(lambda: self._gather(tasks))
        gathered, self._gathered = self._gathered, None
        error = self._attempt(lambda: self.host_ready(gathered)) or error
        ready = [task for task in gathered if task.state is TaskState.HOST_READY]
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

    def _dequeue(self, task: WriteTask) -> list[WriteTask]:
        for tids in (self._queue_hi, self._queue_lo):
            if task.tid in tids:
                tids.remove(task.tid)
        return [task]

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
            self._committer.join(self._timeout_s)
        self._fail_all(self.unfinished(), ShutdownError("the cache was shut down"))
        stuck = self._committer is not None and self._committer.is_alive()
        return [COMMITTER_NAME] if stuck else []

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


def _holder(task: WriteTask) -> StagingBufferHolder:
    return StagingBufferHolder("task", task.tid)


OmniPrefixCacheController = PrefixCacheController
_BudgetTicket = BudgetTicket
_WriteChunk = WriteChunk
