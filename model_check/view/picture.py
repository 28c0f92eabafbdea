"""What a picture shows, whatever it is drawn from and whatever draws it: lanes, moments on them, and strips.

Time is the number of a moment, from 0: a trace has an order and no clock. What a moment leaves behind holds from its
number up to the next change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import CheckError
from .strips import Strip


class ViewError(CheckError):
    """A file that nothing can be drawn from."""


@dataclass(frozen=True)
class Moment:
    """One event, or one step of a counterexample or schedule."""

    #: the number that its own file gives it
    number: int
    lane: str
    #: the name of the thread, where the lane's is a role
    thread: str
    action: str
    #: what it was asked for and what it left, a line for each
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """What is wrong, and where: `at` is the number of a moment, None where it is about the whole."""

    at: int | None
    #: what was found, in a line
    what: str
    #: each property that it breaks, and what that says
    properties: tuple[tuple[str, str], ...]
    #: the values that break it, by name
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Picture:
    """Everything that a page, or another viewer's file, is made of."""

    title: str
    #: what it was drawn from: "trace", "counterexample", "schedule"
    kind: str
    #: a line below the title
    about: str
    lanes: tuple[str, ...]
    moments: tuple[Moment, ...]
    strips: tuple[Strip, ...]
    #: by moment: the strips that it touched, by their place in `strips`
    touches: tuple[tuple[int, ...], ...]
    #: times between two moments of one lane in which its thread waits or copies: lane, first, last, what
    spans: tuple[tuple[str, int, int, str], ...] = ()
    failure: Failure | None = None
    #: the moment that the last one is followed by, where the behavior goes on for ever
    back_to: int | None = None


#: from the top; others come after them, in the order of their first moment
LANES = ("scheduler", "engine", "builder", "prefetch", "committer", "closer", "device")


def in_order(lanes: Iterable[str]) -> tuple[str, ...]:
    """Lanes from top to bottom."""
    named = list(dict.fromkeys(lanes))
    return (*(lane for lane in LANES if lane in named), *(lane for lane in named if lane not in LANES))


#: the moment that ends what another began
_ENDS = {
    "join_begin": ("join_end",),
    "claim_page_begin": ("claim_page_end",),
    "begin_fetch": ("end_fetch", "drop_read"),
    "claim_copy": ("wake",),
    "shutdown_begin": ("shutdown_end",),
}
_CALLED = {
    "join_begin": "waits for tasks",
    "claim_page_begin": "waits for a page",
    "begin_fetch": "fetches",
    "claim_copy": "writes",
    "shutdown_begin": "shuts down",
}


@dataclass
class Spans:
    """Collects the times between a beginning and its end, thread by thread."""

    found: list[tuple[str, int, int, str]] = field(default_factory=list)
    _open: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def note(self, thread: str, lane: str, action: str, at: int) -> None:
        """An action of a thread."""
        if action in _ENDS:
            self._open[thread, action] = at, lane
        for begin, ends in _ENDS.items():
            if action in ends and (opened := self._open.pop((thread, begin), None)) is not None:
                self.found.append((opened[1], opened[0], at, _CALLED[begin]))
