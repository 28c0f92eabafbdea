"""The in-process checker: one event after the other against the rules.

It shares the declarations of the package (the registry of actions, the trace schema) and nothing else: what
follows from an event is computed from the rules and compared with what the code logged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from palimpsest.actions import ACTIONS
from palimpsest.trace import Event

from ..mirror_replay.machine import MirrorMachine
from ..mirror_replay.schema import SYSTEM
from .loading import load
from .parts import start
from .state import State
from .step_rules import StepRules
from .verdict import RejectedError, Verdict
from .write_rules import WriteRules

#: what a thread may do while it has tasks to write
WRITERS_ACTIONS = frozenset(
    {"claim_copy", "host_ready", "begin_pool_write", "complete", "fail", "record_failure", "wake"}
    | {"release_page", "copy_lands"}
)

__all__ = ["Machine", "load", "replay"]


class Machine(StepRules, WriteRules):
    """A state of the specification that takes the events of a trace."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(State(config))
        if "part" in config:
            start(self.s, config["part"])
        self.rules = {name: getattr(self, name) for name in ACTIONS}

    def due(self, seq: int, number: int) -> None:
        """Refuse an event that is not the next one."""
        if seq != number:
            self.reject("events follow one another", "ReleasedOnce", f"number {seq} where {number} is due")

    def take(self, event: Event) -> None:
        """Take one event. Raises `RejectedError` when the specification does not allow it."""
        _, thread, action, args, post = event
        rule = self.rules.get(action)
        if rule is None:
            self.reject("the action is known", "TaskChain", action)
        if thread in self.s.waits and action != "join_end":
            self.wait_ran_out(action, thread)
        if thread in self.s.writing and action not in WRITERS_ACTIONS:
            self.reject("the thread has brought its tasks to their end", "TaskChain", f"{self.s.writing[thread]}")
        try:
            rule(args, post, thread)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self.reject("the event is well formed", "TaskChain", repr(error))


def machine_for(config: dict[str, Any]) -> Machine | MirrorMachine:
    """A checker of the system that a trace's header names; without a name, of the prefix cache."""
    return MirrorMachine(config) if config.get("system") == SYSTEM else Machine(config)


def replay(name: str, config: dict[str, Any], events: Iterable[Event]) -> Verdict:
    """The verdict on a whole trace; it stops at the first event that is rejected."""
    machine, accepted, at = machine_for(config), 0, "the end"
    part = config.get("part")
    before = part["after"] if part is not None else 0
    events = list(events)
    if isinstance(machine, MirrorMachine):
        machine.expect(sorted({event.args.get("rank", 0) for event in events}))
    rejection = None
    take = machine.take
    try:
        for number, event in enumerate(events, before + 1):
            at = event.action
            if event.seq != number:
                machine.due(event.seq, number)
            take(event)
            accepted += 1
        at = "the end"
        if events and part is None:  # what a flight recorder keeps ends in the middle
            machine.end()
    except RejectedError as error:
        rejection = error
    counts = dict(Counter(event.action for event in events[:accepted]))
    if rejection is None:
        return Verdict(name, len(events), accepted, actions=counts)
    seq = events[min(accepted, len(events) - 1)].seq
    return Verdict(name, len(events), accepted, rejection, seq, at, counts)
