"""Which requests are live, as which generation, and which deferred task of each is open."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from palimpsest.prefix_cache.controller import PrefixCacheController
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.steps import StepRows
from palimpsest.prefix_cache.tasks import WriteChunk, WriteRecord, WriteTask
from palimpsest.lifecycle import TaskState
from palimpsest.sync import Sync


class RequestTasks:
    """The requests that a save has published and that have not ended. Guarded by the state lock."""

    def __init__(self, controller: PrefixCacheController, sync: Sync) -> None:
        self._controller, self._sync = controller, sync
        #: request -> generation: one life of a request, from its first published save to its end
        self.live: dict[str, int] = {}
        #: request -> the deferred task that takes its next rows
        self.deferred: dict[str, WriteTask] = {}
        self._writes: dict[str, int] = {}
        self._generations = itertools.count(1)
        self._tids = itertools.count(1)

    @property
    def tasks(self) -> dict[str, set[int]]:
        """The tasks of each request that are not yet drained."""
        by_request: dict[str, set[int]] = {}
        for task in list(self._controller._tasks.values()):
            by_request.setdefault(task.req_id, set()).add(task.tid)
        return by_request

    def generations(self, req_ids: Iterable[str]) -> list[int]:
        """The generation of each request; one that is not live starts a new one."""
        live = self.live
        return [live.get(req_id) or self._start(req_id) for req_id in req_ids]

    def end(self, req_ids: Iterable[str]) -> list[int]:
        """End the requests' generations; gives the open deferred tasks to escalate."""
        tids = []
        for req_id in req_ids:
            self.live.pop(req_id, None)
            self._writes.pop(req_id, None)
            if (task := self.deferred.pop(req_id, None)) is not None:
                tids.append(task.tid)
        return tids

    def renew(self) -> list[int]:
        """Give every live request a new generation; gives the open deferred tasks, now closed."""
        for req_id in self.live:
            self.live[req_id] = next(self._generations)
        tids = [task.tid for task in self.deferred.values()]
        self.deferred.clear()
        return tids

    def seal_oldest(self) -> list[int]:
        """Close the open deferred tasks that hold the oldest rows of any; gives them."""
        if not self.deferred:
            return []
        oldest = min(task.chunks[0].record.serial for task in self.deferred.values())
        sealed = [req for req, task in self.deferred.items() if task.chunks[0].record.serial == oldest]
        return [self.deferred.pop(req_id).tid for req_id in sealed]

    def immediate(self, record: WriteRecord, rows: StepRows, step_id: int, page: int, event: object) -> list[WriteTask]:
        """One task per request with rows in this step's record, not yet registered."""
        lock, sync, schedule = self._controller.lock, self._sync, WriteSchedule.JOIN_NEXT_STEP
        bounds, tids = rows.bounds, self._tids
        return [
            WriteTask(
                next(tids), req_id, step_id, schedule, [WriteChunk.of(record, bounds[i], bounds[i + 1])], page, event,
                lock=lock, sync=sync,
            )
            for i, req_id in enumerate(rows.req_order)
            if bounds[i + 1] > bounds[i]
        ]  # fmt: skip

    def append(self, chunks: list[tuple[str, WriteChunk]]) -> tuple[list[WriteTask], list[WriteTask], list[int]]:
        """Give each request's rows to its open deferred task, opening one where there is none that can
        take them. Gives the task of each chunk, the tasks opened, and the tasks closed for escalation."""
        takers, opened, closed = [], [], []
        for req_id, chunk in chunks:
            task = self.deferred.get(req_id)
            if task is None or (task.reassigned and _lost_any(task, chunk)) or task.append_chunk(chunk) is not None:
                if task is not None and task.state is TaskState.PENDING:
                    closed.append(task.tid)
                task = self._open(req_id, chunk)
                opened.append(task)
            takers.append(task)
        return takers, opened, closed

    def _open(self, req_id: str, chunk: WriteChunk) -> WriteTask:
        self._writes[req_id] = number = self._writes.get(req_id, 0) + 1
        task = WriteTask(
            next(self._tids), req_id, number, WriteSchedule.JOIN_ON_FINISH, [chunk],
            lock=self._controller.lock, sync=self._sync,
        )  # fmt: skip
        self.deferred[req_id] = task
        return task

    def _start(self, req_id: str) -> int:
        self.live[req_id] = generation = next(self._generations)
        return generation


def _lost_any(task: WriteTask, chunk: WriteChunk) -> bool:
    slots = chunk.slots_cpu.numpy()
    return any(task.lost_any(key, slots) for key in chunk.record.tensors)
