"""The actions that take write tasks to the pool and publish a record of each.

Immediate tasks of a step and deferred tasks of an escalation travel as sets: each action takes a non-empty
set of tasks, and the rows of a set reach the pool in one write per key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from itertools import islice
from time import perf_counter_ns as now_ns
from typing import Any

from palimpsest.actions import action
from palimpsest.errors import ShutdownError
from palimpsest.lifecycle import TaskState, advance
from palimpsest.prefix_cache import events
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.copies import Copies
from palimpsest.prefix_cache.gather import gather_writes, records_of
from palimpsest.prefix_cache.group import states_of, whole
from palimpsest.prefix_cache.interface import PrefixCacheConfig
from palimpsest.prefix_cache.joins import JoinBoard
from palimpsest.prefix_cache.records import PoolWrite, WriteRecord
from palimpsest.prefix_cache.sets import as_group, finish, fire, groups_of, in_state
from palimpsest.prefix_cache.staging import StagingPool
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.taskboard import _tids
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.sync import Sync
from palimpsest.trace import Sink


class Committer(JoinBoard):
    """What the committer does with tasks, whichever thread is the committer."""

    def __init__(
        self,
        pool: PrefixBlockPool,
        config: PrefixCacheConfig,
        *,
        pinned: bool,
        sync: Sync,
        trace: Sink | None,
        stats: Stats,
    ) -> None:
        super().__init__(config, sync, trace, stats)
        self._pool, self._copies = pool, Copies(self._timeout_s, sync, self.slow)
        self._staging_pool = StagingPool(config, pinned=pinned, sync=sync, trace=trace, stats=stats, slow=self.slow)

    @property
    def staging(self) -> StagingPool:
        """The staging pages."""
        return self._staging_pool

    @action("claim_copy")
    def claim_copy(self, only: WriteTask | None = None) -> list[WriteTask]:
        """Pop what is queued highest (an escalation, or one step's tasks), or `only` that task, and claim its
        copy stage."""
        with self._lock:
            popped = self._pop() if only is None else self._dequeue(only)
            claimed = in_state(popped, TaskState.QUEUED)
            fire(claimed, "claim_copy")
            if self._trace is not None and claimed:
                self._trace.emit("claim_copy", {"tids": _tids(claimed)}, self._queues())
            return claimed

    def _pop(self) -> list[WriteTask]:
        tasks, low = self._tasks, self._queue_lo
        if self._queue_hi:
            popped = [task for tid in self._queue_hi if (task := tasks.get(tid)) is not None]
            self._queue_hi.clear()
            return as_group(popped)
        first = tasks.get(low[0]) if low else None
        if first is not None and _begins_with(low, (group := first.group).tids) and group.tasks:
            for _ in group.tids:
                low.popleft()
            return group.tasks
        popped = []
        while low:
            task = tasks.get(low[0])
            if task is not None and (group := task.group) is not (popped[0].group if popped else group):
                break
            low.popleft()
            if task is not None:
                popped.append(task)
        return as_group(popped)

    def _dequeue(self, task: WriteTask) -> list[WriteTask]:
        self._unqueue({task.tid})
        return [task]

    def _unqueue(self, tids: set[int]) -> None:
        for queue in (self._queue_hi, self._queue_lo):
            if not tids.isdisjoint(queue):
                left = [tid for tid in queue if tid not in tids]
                queue.clear()
                queue.extend(left)

    def _copy_to_host(self, tasks: Collection[WriteTask]) -> None:
        """Wait until the tasks' rows are on the host, copying deferred clones there."""
        for event in {group.step_d2h_event for group in groups_of(tasks)}:
            if event is not None:
                event.synchronize()
        group = whole(tasks)
        if group is not None and group.row_tids is not None:
            return  # a step's rows land on its page
        pending = [self._copy_record(record) for record in records_of(tasks) if record.host is None]
        for record, host, landed in pending:
            if landed is not None:
                landed.says = partial(self._says, tasks)
                landed.synchronize()
            record.host = host

    def _says(self, tasks: Collection[WriteTask]) -> str:
        return f"the deferred rows of {', '.join(map(str, list(tasks)[:4]))}"

    def _copy_record(self, record: WriteRecord) -> tuple[WriteRecord, Any, Any]:
        return (record, *self._copies.to_host(record.tensors))

    @action("host_ready")
    def host_ready(self, tasks: list[WriteTask]) -> None:
        """COPYING becomes HOST_READY; the tasks give their tickets back."""
        with self._lock:
            try:
                for task in tasks:
                    task.mark_host_ready()
            finally:
                ready = in_state(tasks, TaskState.HOST_READY)
                self._release_tickets(ready)
                if self._trace is not None and ready:
                    post = {"tasks": states_of(ready), "staged_bytes": self._staged_bytes}
                    self._trace.emit("host_ready", {"tids": _tids(ready)}, post)

    @action("begin_pool_write")
    def begin_pool_write(self, tasks: list[WriteTask]) -> PoolWrite:
        """Decide which rows of the tasks are written: one per slot, none that was taken over."""
        with self._lock:
            write = gather_writes(tasks)
            if self._trace is not None:
                post = {"rows": events.pool_rows(self._trace, write)}
                self._trace.emit("begin_pool_write", {"tids": list(write.tids)}, post)
            return write

    def _write_pool(self, tasks: list[WriteTask]) -> None:
        """Write the rows of HOST_READY tasks, one write per key, then publish and wake."""
        write = self.begin_pool_write(tasks)
        began = now_ns()
        for key, slots, _, rows, _ in write.writes:
            self._pool.write(key, slots, rows)
        self.stats.count_pool_write(write, now_ns() - began)
        self._release_pages(tasks)
        self.complete(tasks, write)
        self.wake(tasks)

    @action("complete")
    def complete(self, tasks: list[WriteTask], write: PoolWrite) -> None:
        """HOST_READY becomes WRITTEN and the completion records are published; nobody is woken yet."""
        with self._lock:
            fire(tasks, "complete")
            self._completed += write.tids
            self.stats.writes += len(write.tids)
            self._landed.append(write)
            if self._trace is not None:
                self._trace.emit("complete", {"tids": _tids(tasks)}, self._records())

    @action("wake")
    def wake(self, tasks: Collection[WriteTask]) -> None:
        """Wake who waits for these tasks; their records are published."""
        with self._lock:
            waited_for = finish(tasks)
            if self._trace is not None:
                self._trace.emit("wake", {"tids": _tids(tasks)}, {"tasks": states_of(tasks)})
        for event in waited_for:
            event.set()

    def _release_pages(self, tasks: list[WriteTask]) -> None:
        for group in groups_of(tasks):
            if group.staging_slot is not None:
                mine = group.tids if whole(tasks) is group else [task.tid for task in tasks if task.group is group]
                self._staging_pool.release_page(group.staging_slot, tids=mine)

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
            self._unqueue({task.tid for task in failed})
            self._release_tickets(failed)
            if not isinstance(cause, ShutdownError):
                self.stats.writes_failed += len(failed)
            if self._trace is not None and failed:
                post = {"tasks": states_of(failed), "staged_bytes": self._staged_bytes}
                self._trace.emit("fail", {"tids": _tids(failed)}, post)
            return failed

    @action("record_failure")
    def record_failure(self, tasks: list[WriteTask]) -> None:
        """Publish the failure records; nobody is woken yet."""
        with self._lock:
            self._failed += [task.tid for task in tasks]
            if self._trace is not None:
                self._trace.emit("record_failure", {"tids": _tids(tasks)}, self._records())


def _begins_with(queue: deque[int], tids: range) -> bool:
    return len(queue) >= len(tids) and list(islice(queue, len(tids))) == list(tids)
