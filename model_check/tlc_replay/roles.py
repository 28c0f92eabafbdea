"""Who does what: the threads of a trace as the specification names them.

In eager mode one thread is engine, committer and builder; what an event is about tells the role.
"""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.trace import Event

_COMMITTER = frozenset({"claim_copy", "host_ready", "begin_pool_write", "complete"})
_CLOSER_TOO = frozenset({"fail", "record_failure", "wake"})
_CAUSES = frozenset({"begin_step", "publish", "take_step", "reset", "shutdown_end"})
_FETCHES = frozenset({"begin_fetch", "end_fetch", "drop_read"})


class Roles:
    """The role of each event's thread, and the action that each drain is a part of."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._role: dict[int, str] = {}
        self._cause: dict[int, Event | None] = {}
        self._last: set[int] = set()
        self._engine = next((event.thread for event in events if event.action == "begin_step"), "")
        self._closing = ""
        self._fetching: set[str] = set()
        self._taken: set[int] = set()
        self._flushing = False
        self._note_causes(events)
        for event in events:
            self._role[event.seq] = self._role_of(event)

    def of(self, event: Event) -> str:
        """`engine`, `builder`, `prefetch`, `committer`, `closer` or `device`."""
        return self._role[event.seq]

    def cause_of(self, drain: Event) -> Event | None:
        """The action that follows a drain in the same critical section, if there is one."""
        return self._cause.get(drain.seq)

    def joins_last(self, event: Event) -> bool:
        """Whether an engine's wait is for the writes of its last step, not for a flush."""
        return event.seq in self._last

    def _note_causes(self, events: Sequence[Event]) -> None:
        drains: dict[str, Event] = {}
        for event in events:
            if (drain := drains.pop(event.thread, None)) is not None:
                self._cause[drain.seq] = event if event.action in _CAUSES else None
            if event.action == "drain":
                drains[event.thread] = event

    def _role_of(self, event: Event) -> str:
        action, reader = event.action, "prefetch" if "prefetch" in event.thread else "builder"
        if action in _COMMITTER:
            return "committer"
        if action in _CLOSER_TOO:
            return "closer" if event.thread == self._closing else "committer"
        if action in _FETCHES:
            (self._fetching.add if action == "begin_fetch" else self._fetching.discard)(event.thread)
            return reader
        if action in ("join_begin", "join_end"):
            return self._joining(event, reader)
        return self._of_steps(event)

    def _of_steps(self, event: Event) -> str:
        match event.action:
            case "take_step" | "discard_step":
                self._taken.add(event.args["step"])
                return "builder"
            case "shutdown_begin" | "shutdown_end":
                self._closing = event.thread
                return "closer"
            case "drain":
                return self._draining(event)
            case "release_page":
                return self._leaving(event)
            case "copy_lands":
                return "device"
        self._flushing = event.action == "seal_oldest" or (self._flushing and event.action == "escalate")
        return "engine"

    def _joining(self, event: Event, reader: str) -> str:
        if event.thread in self._fetching:
            return reader
        if not self._flushing:
            self._last.add(event.seq)
        return "engine"

    def _draining(self, event: Event) -> str:
        cause = self._cause.get(event.seq)
        match cause.action if cause is not None else "":
            case "take_step":
                return "builder"
            case "shutdown_end":
                return "closer"
            case "begin_step" | "publish" | "reset":
                return "engine"
        return "engine" if event.thread == self._engine else "builder"

    def _leaving(self, event: Event) -> str:
        kind, number = event.args["left"][0]
        if kind == "task":
            return "closer" if event.thread == self._closing else "committer"
        if self._closing and event.thread == self._closing and number not in self._taken:
            return "closer"
        return "builder" if number in self._taken else "engine"
