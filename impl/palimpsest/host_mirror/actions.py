"""The registry of the host mirror's actions: one entry, one function, one event, one line of `Next` in HostMirror.tla.

A mirror is driven by one thread, so that what a function does is a critical section by itself; only what it queues on
the copy stream could be overtaken by that stream. A function that queues therefore holds `WorkerState._section`, which
the copy stream takes before it reports, and never waits in it. Without a trace the section is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from palimpsest.actions import Action

F = TypeVar("F", bound=Callable[..., object])

RUNNER, COPY_STREAM, DEVICE = "runner", "copy stream", "device"


def _action(name: str, does: str) -> Action:
    return Action(name, (RUNNER,), None, does)


def _queues(name: str, does: str) -> Action:
    return Action(name, (RUNNER,), "section", does)


MIRROR_ACTIONS: dict[str, Action] = {
    entry.name: entry
    for entry in (
        _action("import_rows", "the writer takes rows that were computed elsewhere into the pool"),
        _action("forget_state", "a request comes to a state: no hot row there is its"),
        _action("await_writes", "a step begins: the forward stream waits for the host writes of the last one"),
        _action("meet", "the ranks that share a pool have come, each behind its own last step"),
        _action("copy_host_blocks", "the writer copies host blocks; the others wait for it"),
        _queues("start_transfers", "restore pages, queue transfers that need no forward, take the step's rows"),
        _action("invalidate_blocks", "forget the hot rows of blocks that changed hands"),
        _queues("write", "a layer writes its rows, and hands them on where none can be rejected"),
        _action("select", "a leader plans the rows that attention reads off the device"),
        _action("gather", "a layer fetches what is missing and gets its rows"),
        _queues("finish_target", "the target's phase ends: hand on the rows that stand"),
        _queues("finish_drafts", "the draft's phase ends likewise"),
        _queues("finish_step", "queue the transfers that waited for the step's rows"),
        _action("take_completed_transfers", "hear of transfers that have ended"),
        _action("shutdown", "nothing is on its way, and memory is given back"),
        Action("compute_runs", (RUNNER, DEVICE), None, "the forward stream does what it was given", environment=True),
        Action("copy_runs", (COPY_STREAM,), "section", "copies handed on together land on the host", environment=True),
    )
}


def mirror_action(name: str) -> Callable[[F], F]:
    """A decorator that ties a function to its entry in `MIRROR_ACTIONS`; unknown names raise `KeyError`."""
    entry = MIRROR_ACTIONS[name]

    def mark(function: F) -> F:
        function.__palimpsest_action__ = entry.name  # type: ignore[attr-defined]  # a mark for the name test
        return function

    return mark
