"""Waiting for write tasks, within a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import perf_counter_ns as now_ns

from palimpsest.actions import action
from palimpsest.errors import WaitTimeoutError, WriteFailedError
from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.group import states_of
from palimpsest.prefix_cache.taskboard import TaskBoard, _tids
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.sync import Deadline


class JoinBoard(TaskBoard):
    """A task board at which engine and readers wait. Waits last at most the board's bound."""

    def join(self, tids: Iterable[int]) -> None:
        """Wait until the tasks are written. Raises `WriteFailedError` for one that failed, and
        `WaitTimeoutError` naming the task and its state when the bound runs out."""
        waited = self.join_begin(list(tids))
        if waited:
            deadline, began = Deadline(self._sync, self._timeout_s), now_ns()
            for task in waited:
                if not task.is_finished() and not self._wait(task, "done", deadline):
                    raise self._late(task, "done")
            self.join_end(waited, now_ns() - began)
        # A task that failed and was drained is no longer registered, and looks like one that was written.
        if self._lost is not None:
            raise WriteFailedError(f"{self._lost} failed before done") from self._causes.get(self._lost.tid)

    @action("join_begin")
    def join_begin(self, tids: list[int]) -> list[WriteTask]:
        """The tasks among `tids` that are registered: those to wait for."""
        with self._lock:
            if self._tasks.keys().isdisjoint(tids):
                return []
            tasks = [task for tid in tids if (task := self._tasks.get(tid)) is not None]
            if tasks:
                self.stats.joins_waited += not all(task.is_finished() for task in tasks)
                if self._trace is not None:
                    self._trace.emit("join_begin", {"tids": _tids(tasks)}, {"tasks": states_of(tasks)})
            return tasks

    @action("join_end")
    def join_end(self, tasks: list[WriteTask], waited_ns: int = 0) -> None:
        """Raise for a task that failed instead of being written."""
        with self._lock:
            self.stats.join_ns += waited_ns
            if self._trace is not None:
                self._trace.emit("join_end", {"tids": _tids(tasks)}, {"tasks": states_of(tasks)})
            lost = next((task for task in tasks if task.state is TaskState.FAILED), None)
        if lost is not None:
            raise WriteFailedError(f"{lost} failed before done") from self._causes.get(lost.tid)

    def join_host_ready(self, tids: Iterable[int]) -> None:
        """Wait until the tasks' rows are on the host; errors as in `join`."""
        deadline = Deadline(self._sync, self._timeout_s)
        for tid in tids:
            task = self._tasks.get(tid)
            if task is not None and not self._wait(task, "host_ready", deadline):
                raise self._late(task, "host_ready")
            if task is not None and task.state is TaskState.FAILED:
                raise WriteFailedError(f"{task} failed before host_ready") from self._causes.get(tid)

    def _wait(self, task: WriteTask, what: str, deadline: Deadline) -> bool:
        event: threading.Event = getattr(task, what)
        return self.slow.within(deadline, event.wait, lambda: f"{self._awaited(task, what, 'has not reached')}")

    def _late(self, task: WriteTask, what: str) -> WaitTimeoutError:
        return WaitTimeoutError(self._awaited(task, what, "did not reach", f" within {self._timeout_s:g} s"))

    def _awaited(self, task: WriteTask, what: str, how: str, bound: str = "") -> str:
        return (
            f"task {task.tid} ({task.schedule.value}) {how} {what}{bound}: "
            f"state={task.state.name}, request {task.req_id!r}; {self._who_writes()}"
        )

    def _who_writes(self) -> str:
        return f"{len(self._queue_hi)} tasks are queued high and {len(self._queue_lo)} low"
