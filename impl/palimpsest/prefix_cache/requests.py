"""Which requests are live, as which generation, and which deferred task of each is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.controller import PrefixCacheController
from palimpsest.prefix_cache.group import TaskGroup
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.records import PageEvent, Run, WriteRecord
from palimpsest.prefix_cache.sets import open_tasks
from palimpsest.prefix_cache.steps import BatchShape, StepRows
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.sync import Sync

IntArray = np.ndarray


@dataclass
class Batch:
    """What stays the same while steps have the same requests with the same token counts."""

    shape: BatchShape
    #: the generation of each row
    tenants: IntArray
    #: the requests' open deferred tasks, the task of each row, the records that they share, and who of them holds
    #: the charges of those
    tids: list[int] = field(default_factory=list)
    row_tids: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    records: list[WriteRecord] = field(default_factory=list)
    holders: set[int] = field(default_factory=set)
    #: the board's count of disturbances when they were last known to be open
    disturbances: int = -1


class RequestTasks:
    """The requests that a save has published and that have not ended. Guarded by the state lock."""

    def __init__(self, controller: PrefixCacheController, sync: Sync) -> None:
        self._controller, self._sync = controller, sync
        #: request -> generation: one life of a request, from its first published save to its end
        self.live: dict[str, int] = {}
        #: request -> the deferred task that takes its next rows
        self.deferred: dict[str, WriteTask] = {}
        self._batch: Batch | None = None
        self._writes: dict[str, int] = {}
        #: the last generation that was given out
        self.generations = 0
        self._next_tid = 1

    @property
    def tasks(self) -> dict[str, set[int]]:
        """The tasks of each request that are not yet drained."""
        by_request: dict[str, set[int]] = {}
        for task in list(self._controller._tasks.values()):
            by_request.setdefault(task.req_id, set()).add(task.tid)
        return by_request

    def tenants(self, rows: StepRows) -> IntArray:
        """The generation of each row of a step; a request that is not live starts a new one."""
        shape = rows.shape
        if self._batch is None or self._batch.shape is not shape:
            generations = [self.live.get(req_id) or self._start(req_id) for req_id in shape.names]
            self._batch = Batch(shape, shape.per_row(generations))
        return self._batch.tenants

    def end(self, req_ids: Iterable[str]) -> list[int]:
        """End the requests' generations; gives the open deferred tasks to escalate."""
        tids = []
        for req_id in req_ids:
            self._batch = None
            self.live.pop(req_id, None)
            self._writes.pop(req_id, None)
            if (task := self.deferred.pop(req_id, None)) is not None:
                tids.append(task.tid)
        return tids

    def renew(self) -> list[int]:
        """Give every live request a new generation; gives the open deferred tasks, now closed."""
        self._batch = None
        for req_id in self.live:
            self._start(req_id)
        tids = [task.tid for task in self.deferred.values()]
        self.deferred.clear()
        return tids

    def seal_oldest(self) -> list[int]:
        """Close the open deferred tasks that hold the oldest rows of any; gives them."""
        if not self.deferred:
            return []
        self._batch = None
        first = {req_id: task.runs[0][0][0].serial for req_id, task in self.deferred.items()}
        oldest = min(first.values())
        sealed = [req_id for req_id, serial in first.items() if serial == oldest]
        return [self.deferred.pop(req_id).tid for req_id in sealed]

    def immediate(
        self, record: WriteRecord, rows: StepRows, step_id: int, page: int, event: PageEvent | None
    ) -> list[WriteTask]:
        """One task per request with rows in this step's record, not yet registered."""
        shape = rows.shape
        group = self._open(shape.names, [step_id] * len(shape.names), WriteSchedule.JOIN_NEXT_STEP)
        row_tids = shape.row_owners + group.tids.start
        group.give_step(([record], 0, shape.count), shape.marks, row_tids, page, event)
        return open_tasks(group)

    def append(self, record: WriteRecord, rows: StepRows) -> tuple[Batch, list[WriteTask], list[int]]:
        """Give each request's rows of a record to its open deferred task, opening one where there is none
        that can take them. Gives the batch of takers, the tasks opened, and those to escalate.

        `tenants` was called for the same step. The caller holds the task lock.
        """
        batch = self._batch
        assert batch is not None
        assert batch.shape is rows.shape
        if batch.disturbances == self._controller.disturbances:
            batch.records.append(record)
            return batch, [], []
        batch.disturbances = self._controller.disturbances
        return self._append_to_each(batch, record, rows.shape)

    def _append_to_each(
        self, batch: Batch, record: WriteRecord, shape: BatchShape
    ) -> tuple[Batch, list[WriteTask], list[int]]:
        without: list[tuple[str, Run]] = []
        closed: list[int] = []
        batch.records, batch.holders = [record], set()
        for req_id, start, stop in shape.shares():
            task = self.deferred.get(req_id)
            run = (batch.records, start, stop)
            if task is None or task.state is not TaskState.PENDING or _lost_any(task, record, start, stop):
                if task is not None and task.state is TaskState.PENDING:
                    closed.append(task.tid)
                without.append((req_id, run))
            else:
                task.runs.append(run)
        opened = self._open_deferred(without) if without else []
        batch.tids = [self.deferred[req_id].tid for req_id in shape.names]
        batch.holders.update(batch.tids)
        batch.row_tids = shape.per_row(batch.tids)
        return batch, opened, closed

    def _open_deferred(self, runs: list[tuple[str, Run]]) -> list[WriteTask]:
        names = [req_id for req_id, _ in runs]
        numbers = [self._writes.get(req_id, 0) + 1 for req_id in names]
        group = self._open(names, numbers, WriteSchedule.JOIN_ON_FINISH)
        group.give_rows([[run] for _, run in runs])
        tasks = open_tasks(group)
        self._writes.update(zip(names, numbers, strict=True))
        self.deferred.update(zip(names, tasks, strict=True))
        return tasks

    def _open(self, req_ids: list[str], write_ns: list[int], schedule: WriteSchedule) -> TaskGroup:
        tids = range(self._next_tid, self._next_tid + len(req_ids))
        self._next_tid = tids.stop
        return TaskGroup(tids, req_ids, write_ns, schedule, self._controller.lock, self._sync)

    def _start(self, req_id: str) -> int:
        self.generations += 1
        self.live[req_id] = self.generations
        return self.generations


def _lost_any(task: WriteTask, record: WriteRecord, start: int, stop: int) -> bool:
    """Whether a later claim took a row over from `task` that it would write again."""
    if not task.reassigned:
        return False
    slots = record.at[start:stop]
    return any(task.lost_any(key, slots) for key in record.tensors)
