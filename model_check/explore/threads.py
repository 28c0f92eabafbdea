"""The threads of a run, what they are about to do, and what they did."""

from __future__ import annotations

import _thread
import itertools
from collections.abc import Callable, Hashable
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from palimpsest.trace import Event

from .digest import digest

#: how a chosen thread goes on
GOES, FAILS, LATE = "goes on", "fails", "times out"


class Abandon(BaseException):
    """Ends the threads of a run that is over. Nothing but the scheduler catches it for good."""


class Operation(NamedTuple):
    """What a parked thread is about to do."""

    what: str
    on: str
    #: whether it can be done now; None for always
    ready: Callable[[], bool] | None = None
    #: when a bounded wait runs out, on the logical clock
    ends: float | None = None
    may_fail: bool = False
    #: whether to let another thread go on here costs nothing
    yields: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.on}"


class Option(NamedTuple):
    """One way to go on."""

    thread: Thread
    how: str
    #: how far it is from the ordinary: 1 where it takes the turn from a thread that could go on, 1 more for a fault or
    #: a time-out that need not be
    cost: int
    #: whether it takes the turn from a thread that could go on
    takes_over: bool = False


class Step:
    """What one thread did between two choices."""

    __slots__ = ("events", "how", "on", "thread", "what")

    def __init__(self, thread: str, how: str, what: str, on: str) -> None:
        self.thread, self.how, self.what, self.on = thread, how, what, on
        #: of the protocol, that it logged
        self.events: list[Event] = []

    @property
    def actions(self) -> list[str]:
        """The names of its events."""
        return [event.action for event in self.events]

    @property
    def operation(self) -> str:
        """What the thread was about to do."""
        return f"{self.what} {self.on}".strip()


class Thread:
    """A thread of a run: parked at an operation, running, or done."""

    def __init__(self, name: str, number: int, daemon: bool) -> None:
        self.name, self.number, self.daemon = name, number, daemon
        self.operation = Operation("start", "")
        self.frame: FrameType | None = None
        self.done = False
        #: what it has seen since it last forgot: two threads that are at one place and have seen the same go on alike
        self.seen: list[Any] = []
        self._digest, self._digested = b"", 0
        self.turn = _thread.allocate_lock()
        self.turn.acquire()

    def forget(self) -> None:
        """What the thread has seen matters no more."""
        self.seen.clear()
        self._digest, self._digested = b"", 0

    def place(self) -> tuple[Hashable, ...]:
        """Where the thread is, its calls innermost first, whether it can go on, and what it has seen; nothing for one
        that is done."""
        if self.done:
            return ()
        for what in itertools.islice(self.seen, self._digested, None):  # each alone: equal however often one asks
            self._digest = digest((self._digest, what))
        self._digested = len(self.seen)
        ready = self.operation.ready is None or self.operation.ready()
        lines: list[Hashable] = [ready, self.operation.what, self.operation.on, self._digest]
        frame = self.frame
        while frame is not None:
            lines += (frame.f_code.co_name, _position(frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return tuple(lines)


@cache
def _position(code: CodeType, instruction: int) -> tuple[int | None, ...]:
    """Lines and columns of an instruction's source: which instruction a call stands at changes as Python makes code
    that runs often faster."""
    return next(itertools.islice(code.co_positions(), instruction // 2, None))
