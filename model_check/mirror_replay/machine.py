"""The in-process checker of host mirror traces: one event after the other against the rules of the specification."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from palimpsest.host_mirror.actions import MIRROR_ACTIONS
from palimpsest.trace import Event

from .row_rules import RowRules
from .state import MirrorState


class MirrorMachine(RowRules):
    """A state of the specification that takes the events of a trace. It has the ranks that the trace has."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(MirrorState(config))
        self.rules = {name: getattr(self, name) for name in MIRROR_ACTIONS}

    def expect(self, ranks: Iterable[int]) -> None:
        """The trace tells of these ranks: none of the others may go on without one that is late."""
        for number in ranks:
            self.s.rank(number)

    def due(self, seq: int, number: int) -> None:
        """Refuse an event that is not the next one."""
        if seq != number:
            self.reject("events follow one another", "MirroredOnce", f"number {seq} where {number} is due")

    def take(self, event: Event) -> None:
        """Take one event. Raises `RejectedError` when the specification does not allow it."""
        rule = self.rules.get(event.action)
        if rule is None:
            self.reject("the action is known", "MirroredOnce", event.action)
        try:
            number = event.args["rank"]
            if not 0 <= number < self.s.config["ranks"]:
                self.reject("the rank is one of the mirror's", "OneHostWriter", f"rank {number}")
            self.now = self.s.rank(number)
            if self.now.phase == "closed":
                self.reject("the mirror is open", "RegisteredWhileUsed")
            rule(self.now, event.args, event.post)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self.reject("the event is well formed", "MirroredOnce", repr(error))

    def end(self) -> None:
        """A trace may end anywhere: a mirror's runner may stop, or a wait of its run out."""
