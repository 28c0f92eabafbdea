"""The write side: queues, the committer, the byte budget and the records of finished writes.

The controller owns the task lock. Immediate tasks of a step and deferred tasks of an escalation travel
as sets: each committer action below takes a non-empty set of tasks, and the rows of a set reach the pool
in one write per key. In eager mode the engine thread is its own committer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

import torch

from palimpsest.actions import action
from palimpsest.errors import (
    BudgetExceededError,
    PrefixCacheError,
    ShutdownError,
    WaitTimeoutError,
    WriteFailedError,
)
from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.copies import Copies
from palimpsest.prefix_cache.interface import PrefixCacheConfig, WriteSchedule
from palimpsest.prefix_cache.staging import StagingBufferHolder, StagingPool
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.tasks import (
    BudgetTicket,
    FrozenTask,
    WriteChunk,
    WriteRecord,
    WriteTask,
    find_rows,
    gather_writes,
)
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


class PrefixCacheController:
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
        self.stats = stats or Stats()
        self._pool, self._config, self._eager, self._sync, self._trace = pool, config, eager, sync, trace
        self._timeout_s = config.staging_claim_timeout_s
        self._copies = Copies(self._timeout_s, sync)
        self._staging_pool = StagingPool(config, pinned=pinned, sync=sync, trace=trace, stats=self.stats)
        self._lock = sync.lock()
        self._work = sync.condition(self._lock)
        #: registered and not yet drained, by tid; guarded by the task lock
        self._tasks: dict[int, WriteTask] = {}
        #: queued tids, escalated ones first; guarded by the task lock
        self._queue_hi: deque[int] = deque()
        self._queue_lo: deque[int] = deque()
        #: tids whose copy stage is claimed and whose rows are not in the pool; the committer's own
        self._blocked: list[int] = []
        #: records not yet drained, in order; guarded by the task lock
        self._completed: list[int] = []
        self._failed: list[int] = []
        self._causes: dict[int, BaseException] = {}
        #: bytes charged for live device clones; guarded by the task lock
        self._staged_bytes = 0
        #: no more work is taken; guarded by the task lock
        self._closing = False
        #: pool writes held back until the end of an eager run; None outside one (engine thread only)
        self._gathered: list[WriteTask] | None = None
        self._committer = None if eager else sync.thread(self._commit_loop, COMMITTER_NAME)
        if self._committer is not None:
            self._committer.start()

    # ---------------------------------------------------------------- tasks

    @property
    def lock(self) -> Any:
        """The task lock, which the tasks of this controller share."""
        return self._lock

    @property
    def staging(self) -> StagingPool:
        """The staging pages."""
        return self._staging_pool

    def get_task(self, tid: int) -> WriteTask | None:
        """The task, or None once it was drained."""
        return self._tasks.get(tid)

    def submit(self, task: WriteTask, queued: bool) -> None:
        """Register a task; `queued` makes it QUEUED, ready for `dispatch`."""
        self.submit_all([task], queued)

    def submit_all(self, tasks: Iterable[WriteTask], queued: bool) -> None:
        """Register tasks in one critical section."""
        with self._lock:
            for task in tasks:
                if queued:
                    task.state = advance(task.state, TaskState.QUEUED)
                self._tasks[task.tid] = task

    @action("dispatch")
    def dispatch(self, tasks: Collection[WriteTask]) -> None:
        """Hand QUEUED tasks to the committer; in eager mode write them before returning."""
        with self._work:
            self._queue_lo.extend(task.tid for task in tasks)
            if self._trace is not None:
                self._trace.emit("dispatch", {"tids": [task.tid for task in tasks]}, self._queues())
            self._work.notify()
        if self._eager:
            self._run_all(tasks)

    @action("escalate")
    def escalate(self, tids: Iterable[int]) -> None:
        """Have tasks written soon: PENDING ones are queued high, QUEUED ones move up, others are left alone."""
        with self._work:
            raised = [task for tid in tids if (task := self._tasks.get(tid)) is not None and self._raise(task)]
            if self._trace is not None and raised:
                self._trace.emit("escalate", {"tids": [task.tid for task in raised]}, self._queues())
            self._work.notify()
        if self._eager and raised:
            self._run_all(raised)

    def _raise(self, task: WriteTask) -> bool:
        if task.state is TaskState.PENDING:
            task.state = advance(task.state, TaskState.QUEUED)
        elif task.state is not TaskState.QUEUED or task.tid in self._queue_hi:
            return False
        elif task.tid in self._queue_lo:
            self._queue_lo.remove(task.tid)
        self._queue_hi.append(task.tid)
        return True

    # ---------------------------------------------------------------- waiting

    def join(self, tids: Iterable[int]) -> None:
        """Wait until the tasks are written. Raises `WriteFailedError` for one that failed, and
        `WaitTimeoutError` naming the task and its state when the bound runs out."""
        waited = self.join_begin(list(tids))
        deadline = Deadline(self._sync, self._timeout_s)
        for task in waited:
            if not task.is_finished() and not task.done.wait(deadline.left()):
                raise self._late(task, "done", deadline)
        self.join_end(waited)

    @action("join_begin")
    def join_begin(self, tids: list[int]) -> list[WriteTask]:
        """The tasks among `tids` that are registered: those to wait for."""
        with self._lock:
            tasks = [task for tid in tids if (task := self._tasks.get(tid)) is not None]
            self.stats.waits += any(not task.is_finished() for task in tasks)
            if self._trace is not None:
                self._trace.emit("join_begin", {"tids": tids}, {"tasks": _states(tasks)})
            return tasks

    @action("join_end")
    def join_end(self, tasks: list[WriteTask]) -> None:
        """Raise for a task that failed instead of being written."""
        with self._lock:
            if self._trace is not None:
                self._trace.emit("join_end", {"tids": [task.tid for task in tasks]}, {"tasks": _states(tasks)})
            lost = next((task for task in tasks if task.state is TaskState.FAILED), None)
        if lost is not None:
            raise WriteFailedError(f"{lost} failed before done") from self._causes.get(lost.tid)

    def join_host_ready(self, tids: Iterable[int]) -> None:
        """Wait until the tasks' rows are on the host; errors as in `join`."""
        deadline = Deadline(self._sync, self._timeout_s)
        for tid in tids:
            task = self._tasks.get(tid)
            if task is not None and not task.host_ready.wait(deadline.left()):
                raise self._late(task, "host_ready", deadline)
            if task is not None and task.state is TaskState.FAILED:
                raise WriteFailedError(f"{task} failed before host_ready") from self._causes.get(tid)

    def _late(self, task: WriteTask, what: str, deadline: Deadline) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"task {task.tid} ({task.schedule.value}) did not reach {what} within {deadline.seconds:g} s: "
            f"state={task.state.name}, request {task.req_id!r}; committer "
            f"{'is the engine thread (eager)' if self._committer is None else self._committer_state()}"
        )

    def _committer_state(self) -> str:
        alive = self._committer is not None and self._committer.is_alive()
        return f"{'runs' if alive else 'is dead'}, {len(self._queue_hi)}+{len(self._queue_lo)} tasks queued"

    def fetch_host(self, task: WriteTask | FrozenTask, slots: torch.Tensor, key: str) -> torch.Tensor:
        """A copy of the rows of `key` that `task` holds for `slots`, after its step's copies have landed."""
        if task.step_d2h_event is not None:
            task.step_d2h_event.synchronize()
        return find_rows(task, slots, key)

    # ---------------------------------------------------------------- budget

    @property
    def budget_bytes(self) -> int:
        """The most bytes that may be charged at once."""
        return self._config.gpu_staging_bytes

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
        ticket.holders.add(tid)

    def pin_all(self, ticket: BudgetTicket | None, tasks: Iterable[WriteTask]) -> None:
        """Let tasks hold the charge of `ticket`, if there is one."""
        if ticket is not None:
            with self._lock:
                ticket.holders.update(task.tid for task in tasks)

    def _release_staged_bytes(self, task: WriteTask) -> None:
        with self._lock:
            self._release_tickets(task)

    def _release_tickets(self, task: WriteTask) -> None:
        for ticket in task.budget_tickets():
            if task.tid in ticket.holders:
                ticket.holders.discard(task.tid)
                if not ticket.holders:
                    self._staged_bytes -= ticket.nbytes

    # ---------------------------------------------------------------- committer actions

    @action("claim_copy")
    def claim_copy(self) -> list[WriteTask]:
        """Pop what is queued highest (an escalation, or one step's tasks) and claim its copy stage."""
        with self._lock:
            return self._claim(self._pop())

    def _pop(self) -> list[WriteTask]:
        if self._queue_hi:
            popped = [self._tasks[tid] for tid in self._queue_hi if tid in self._tasks]
            self._queue_hi.clear()
            return popped
        popped = []
        while self._queue_lo:
            task = self._tasks.get(self._queue_lo[0])
            if popped and task is not None and task.staging_slot != popped[0].staging_slot:
                break
            self._queue_lo.popleft()
            if task is not None:
                popped.append(task)
        return popped

    def _claim(self, tasks: list[WriteTask]) -> list[WriteTask]:
        claimed = [task for task in tasks if task.state is TaskState.QUEUED]
        for task in claimed:
            task.state = TaskState.COPYING
        if self._trace is not None and claimed:
            self._trace.emit("claim_copy", {"tids": [task.tid for task in claimed]}, self._queues())
        return claimed

    def _copy_to_host(self, tasks: list[WriteTask]) -> None:
        """Wait until the tasks' rows are on the host, copying deferred clones there."""
        for event in dict.fromkeys(task.step_d2h_event for task in tasks):
            if event is not None:
                event.synchronize()
        records = dict.fromkeys(chunk.record for task in tasks for chunk in task.chunks)
        pending = [self._copy_record(record) for record in records if record.host is None]
        for record, host, landed in pending:
            if landed is not None:
                landed.synchronize()
            record.host = host

    def _copy_record(self, record: WriteRecord) -> tuple[WriteRecord, Any, Any]:
        return (record, *self._copies.to_host(record.tensors))

    @action("host_ready")
    def host_ready(self, tasks: list[WriteTask]) -> None:
        """COPYING becomes HOST_READY; the tasks give their tickets back."""
        for task in tasks:
            task.mark_host_ready()
        with self._lock:
            for task in tasks:
                self._release_tickets(task)
            if self._trace is not None:
                post = {"tasks": _states(tasks), "staged_bytes": self._staged_bytes}
                self._trace.emit("host_ready", {"tids": [task.tid for task in tasks]}, post)

    @action("begin_pool_write")
    def begin_pool_write(self, tasks: list[WriteTask]) -> None:
        """Decide which rows of the tasks are written: one per slot, none that was taken over."""
        with self._lock:
            write = gather_writes(tasks)
            for task in tasks:
                task.landed = write
            if self._trace is not None:
                rows = [{"key": w.key, "slots": w.slots.numpy().copy(), "tids": w.tids} for w in write.writes]
                self._trace.emit("begin_pool_write", {"tids": list(write.tids)}, {"rows": rows})

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
            for task in tasks:
                task.state = advance(task.state, TaskState.WRITTEN)
            self._completed.extend(task.tid for task in tasks)
            if self._trace is not None:
                self._trace.emit("complete", {"tids": [task.tid for task in tasks]}, self._records())

    @action("wake")
    def wake(self, tasks: list[WriteTask]) -> None:
        """Wake who waits for these tasks; their records are published."""
        if self._trace is not None:
            with self._lock:
                self._trace.emit("wake", {"tids": [task.tid for task in tasks]}, {"tasks": _states(tasks)})
        for task in tasks:
            task.wake()

    def _release_pages(self, tasks: list[WriteTask]) -> None:
        pages: dict[int, list[StagingBufferHolder]] = {}
        for task in tasks:
            if task.staging_slot is not None:
                pages.setdefault(task.staging_slot, []).append(StagingBufferHolder.for_task(task.tid))
        for page, holders in pages.items():
            self._staging_pool.release_page(page, holders)

    # ---------------------------------------------------------------- failure

    def _fail_task(self, tid: int, cause: BaseException | None = None) -> None:
        task = self._tasks.get(tid)
        if task is not None:
            self._fail_all([task], cause)

    def _fail_all(self, tasks: Iterable[WriteTask], cause: BaseException | None) -> None:
        """Fail what is not final: release, publish the record, then wake."""
        failed = self.fail(list(tasks), cause)
        if failed:
            self._release_pages(failed)
            self.record_failure(failed)
            self.wake(failed)

    @action("fail")
    def fail(self, tasks: list[WriteTask], cause: BaseException | None) -> list[WriteTask]:
        """Mark tasks that are not final as FAILED and give their tickets back; gives those."""
        failed = [task for task in tasks if task.fail()]
        with self._lock:
            for task in failed:
                self._release_tickets(task)
                if cause is not None:
                    self._causes[task.tid] = cause
            if self._trace is not None and failed:
                post = {"tasks": _states(failed), "staged_bytes": self._staged_bytes}
                self._trace.emit("fail", {"tids": [task.tid for task in failed]}, post)
        return failed

    @action("record_failure")
    def record_failure(self, tasks: list[WriteTask]) -> None:
        """Publish the failure records; nobody is woken yet."""
        with self._lock:
            self._failed.extend(task.tid for task in tasks)
            if self._trace is not None:
                self._trace.emit("record_failure", {"tids": [task.tid for task in tasks]}, self._records())

    def cause_of(self, tid: int) -> BaseException | None:
        """Why a task failed, where that is known."""
        return self._causes.get(tid)

    def take_records(self) -> tuple[list[WriteTask], list[WriteTask]]:
        """The tasks written and the tasks failed since the last call; they are no longer registered."""
        with self._lock:
            completed, self._completed = self._completed, []
            failed, self._failed = self._failed, []
            pop = self._tasks.pop
            return (
                [task for tid in completed if (task := pop(tid, None)) is not None],
                [task for tid in failed if (task := pop(tid, None)) is not None],
            )

    def abandon_all(self) -> None:
        """Take every row over from the tasks that are not final: they write nothing any more."""
        with self._lock:
            for task in self._tasks.values():
                task.abandoned = True

    # ---------------------------------------------------------------- eager

    def _run_all(self, tasks: Collection[WriteTask]) -> None:
        """Run tasks on this thread, their rows gathered into one pool write; the first error fails the rest."""
        self._gathered = []
        error: BaseException | None = None
        try:
            for task in tasks:
                self._run_eager(task)
        except BaseException as caught:
            error = caught
        gathered, self._gathered = self._gathered, None
        try:
            if gathered:
                self._write_pool(gathered)
        except BaseException as caught:
            error = error or caught
        if error is not None:
            self._fail_all(tasks, error)
            raise error

    def _run_eager(self, task: WriteTask) -> None:
        with self._lock:
            claimed = self._claim([task])
            self._dequeue(task.tid)
        if claimed:
            self._copy_to_host(claimed)
            self.host_ready(claimed)
            self._scatter(task)

    def _dequeue(self, tid: int) -> None:
        for tids in (self._queue_hi, self._queue_lo):
            if tids and tids[0] == tid:
                tids.popleft()
            elif tid in tids:
                tids.remove(tid)

    def _scatter(self, task: WriteTask) -> None:
        """Write a HOST_READY task to the pool; within an eager run, together with the run's other tasks."""
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
                self._blocked.extend(task.tid for task in tasks)
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
            left = list(self._tasks.values())
        self._fail_all(left, error)

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
        self._fail_all(list(self._tasks.values()), ShutdownError("the cache was shut down"))
        stuck = self._committer is not None and self._committer.is_alive()
        return [COMMITTER_NAME] if stuck else []

    def unfinished(self) -> list[str]:
        """Tasks that are neither written nor failed."""
        return [str(task) for task in list(self._tasks.values()) if not task.is_final()]

    def check(self) -> list[str]:
        """What contradicts itself: charges without a clone, pages held by finished tasks."""
        with self._lock:
            tasks = [task for task in self._tasks.values() if not task.is_final()]
            tickets = {ticket for task in tasks for ticket in task.budget_tickets() if task.tid in ticket.holders}
            wrong = []
            if (due := sum(ticket.nbytes for ticket in tickets)) != self._staged_bytes:
                wrong.append(f"{self._staged_bytes} bytes are charged, and live clones take {due}")
            live = {task.tid for task in tasks}
        return wrong + [
            f"page {page} is held by {holder}, which is finished"
            for page, holders in enumerate(self._staging_pool._busy)
            for holder in holders
            if holder.kind == "task" and holder.number not in live
        ]

    def _queues(self) -> dict[str, Any]:
        return {"hi": list(self._queue_hi), "lo": list(self._queue_lo)}

    def _records(self) -> dict[str, Any]:
        return {"completed": list(self._completed), "failed": list(self._failed)}


def _states(tasks: Iterable[WriteTask]) -> dict[int, str]:
    return {task.tid: task.state.name for task in tasks}




OmniPrefixCacheController = PrefixCacheController
_BudgetTicket = BudgetTicket
_WriteChunk = WriteChunk
