"""Sets of write tasks, as they are handed from one committer action to the next.

A set is a list of tasks. When it is a group's own list, its tasks move through their life cycle together.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from itertools import repeat

from palimpsest.lifecycle import TASKS, TaskState
from palimpsest.prefix_cache.group import STATES, TaskGroup, whole
from palimpsest.prefix_cache.tasks import WriteTask


class _Member(WriteTask):
    """A task of a group that was there before it."""

    __slots__ = ()

    def __init__(self, group: TaskGroup, place: int) -> None:
        self.group, self.place = group, place


def open_tasks(group: TaskGroup) -> list[WriteTask]:
    """Make the tasks of a group, and give them; the list is the group's own."""
    group.tasks = list(map(_Member, repeat(group), range(len(group.tids))))
    return group.tasks


def as_group(tasks: list[WriteTask]) -> list[WriteTask]:
    """`tasks`, as the list of their group where they are all of its tasks in order."""
    return group if tasks and (group := tasks[0].group.tasks) == tasks else tasks


def fire(tasks: Collection[WriteTask], trigger: str) -> None:
    """Take tasks through one transition of their life cycle. Raises `IllegalTransitionError`."""
    if (group := whole(tasks)) is not None:
        group.fire(trigger)
        return
    for task in tasks:
        task.state = STATES[TASKS.fire(trigger, task.state)]


def in_state(tasks: list[WriteTask], state: TaskState) -> list[WriteTask]:
    """Those of `tasks` that are in `state`; `tasks` itself when all are."""
    group = whole(tasks)
    if group is not None and group.all_are(state):
        return tasks
    found = [task for task in tasks if task.state is state]
    return tasks if len(found) == len(tasks) else found


def finish(tasks: Collection[WriteTask]) -> list[threading.Event]:
    """Mark tasks as finished, for a caller that holds the task lock; gives the events to set."""
    if (group := whole(tasks)) is not None:
        return group.wake_all()
    return [event for task in tasks for event in task.finish()]


def groups_of(tasks: Collection[WriteTask]) -> list[TaskGroup]:
    """The groups that the tasks belong to, each once."""
    group = whole(tasks)
    return [group] if group is not None else list(dict.fromkeys(task.group for task in tasks))
