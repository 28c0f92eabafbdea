"""Write tasks that were opened together, as columns: the immediate ones of a step, or the deferred ones that a
step opened.

Mostly they move through their life cycle together. Then the list of them, `TaskGroup.tasks` itself, is handed
from action to action, and an action moves them all at once, for the price of one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from palimpsest.lifecycle import TASKS, TaskState
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.records import PageEvent, Run
from palimpsest.sync import LockLike, Sync

if TYPE_CHECKING:
    from palimpsest.prefix_cache.tasks import WriteTask

IntArray = np.ndarray

STATES = tuple(TaskState)
_NAMES = tuple(state.name for state in TaskState)


class TaskGroup:
    """What is known of tasks that were opened together; a `WriteTask` is a place in the columns.

    States and takeovers are guarded by the task lock.
    """

    __slots__ = (
        "_runs",
        "abandoned",
        "bounds",
        "disturbed",
        "events",
        "lock",
        "reassigned",
        "req_ids",
        "row_tids",
        "schedule",
        "staging_slot",
        "states",
        "step_d2h_event",
        "sync",
        "tasks",
        "tids",
        "woken",
        "write_ns",
    )

    def __init__(
        self, tids: range, req_ids: list[str], write_ns: list[int], schedule: WriteSchedule, lock: LockLike, sync: Sync
    ) -> None:
        self.tids, self.req_ids, self.write_ns, self.schedule = tids, req_ids, write_ns, schedule
        self.lock, self.sync = lock, sync
        #: the number of each task's state; all are PENDING at first
        self.states = bytearray(len(tids))
        #: whether each task's waiters are or would be awake
        self.woken = bytearray(len(tids))
        #: the events that somebody asked for, by place: made on demand, since most tasks are finished before
        #: anyone waits for them
        self.events: dict[tuple[str, int], threading.Event] = {}
        #: by place and key, the slots that a later claim took over
        self.reassigned: dict[int, dict[str, torch.Tensor]] = {}
        #: whether a reset took every row over
        self.abandoned = False
        #: whether a later claim or a reset took any row over
        self.disturbed = False
        #: the tasks, in order; empty once all of them were drained
        self.tasks: list[WriteTask] = []
        self._runs: list[list[Run]] = []
        # Of the immediate tasks of a step only: the page that their rows land on and when they have, the task of
        # each row, and the bounds of each task's rows.
        self.staging_slot: int | None = None
        self.step_d2h_event: PageEvent | None = None
        self.row_tids: IntArray | None = None
        self.bounds: list[int] = []

    def give_rows(self, runs: list[list[Run]]) -> None:
        """Let each task write its runs."""
        self._runs = runs

    def give_step(
        self, run: Run, bounds: list[int], row_tids: IntArray, page: int | None, event: PageEvent | None
    ) -> None:
        """Let the tasks write a step's rows among them."""
        self._runs, self.bounds, self.row_tids = [[run]], bounds, row_tids
        self.staging_slot, self.step_d2h_event = page, event

    def runs_of(self, place: int) -> list[Run]:
        """The runs of rows that one task writes."""
        if self.row_tids is None:
            return self._runs[place]
        return [(self._runs[0][0][0], self.bounds[place], self.bounds[place + 1])]

    def whole_step(self) -> Run | None:
        """All rows of the tasks, where those are a step's and none was taken over."""
        return None if self.row_tids is None or self.disturbed else self._runs[0][0]

    def fire(self, trigger: str) -> None:
        """Take every task through one transition. Raises `IllegalTransitionError`, and changes nothing, when it
        is illegal for one of them."""
        self.states = TASKS.fire_all(trigger, self.states)

    def all_are(self, state: TaskState) -> bool:
        """Whether every task is in `state`."""
        return self.states.count(state) == len(self.states)

    def wake_all(self) -> list[threading.Event]:
        """Note that all waiters are or would be awake; gives the events to set."""
        self.woken = bytearray(b"\1" * len(self.woken))
        return list(self.events.values())


def whole(tasks: Collection[WriteTask]) -> TaskGroup | None:
    """The group whose own list of tasks `tasks` is; None for any other collection of tasks."""
    if isinstance(tasks, list) and tasks:
        group: TaskGroup = tasks[0].group
        if group.tasks is tasks:
            return group
    return None


def tids_of(tasks: Collection[WriteTask]) -> Sequence[int]:
    """The numbers of tasks, in order."""
    group = whole(tasks)
    return group.tids if group is not None else [task.group.tids[task.place] for task in tasks]


def states_of(tasks: Collection[WriteTask]) -> dict[int, str]:
    """The names of the tasks' states by their numbers."""
    group = whole(tasks)
    if group is not None:
        return dict(zip(group.tids, map(_NAMES.__getitem__, group.states), strict=True))
    return {task.tid: _NAMES[task.group.states[task.place]] for task in tasks}
