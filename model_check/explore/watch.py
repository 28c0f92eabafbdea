"""Watches a run: each event goes to the in-process checker at once, and the state after it has a digest."""

from __future__ import annotations

from typing import Any

from palimpsest.actions import ACTIONS
from palimpsest.trace import Event
from palimpsest.trace.sinks import Tag

from ..mirror_replay.machine import MirrorMachine
from ..replay.machine import Machine, machine_for
from ..replay.verdict import RejectedError
from .digest import digest
from .finding import Finding
from .scheduler import Scheduler

_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)


class Watch:
    """A trace sink that checks what it is given; the run ends at the first event that is rejected."""

    def __init__(self, scheduler: Scheduler, tag: Tag) -> None:
        self.tag: Tag | None = tag
        #: what the cache was made with
        self.config: dict[str, Any] = {}
        self._scheduler = scheduler
        self._machine: Machine | MirrorMachine | None = None
        self._digest: bytes | None = None

    def begin(self, config: dict[str, Any]) -> None:
        """Start the checker; the ranks of a mirror share it."""
        self.config = config
        if self._machine is None:
            self._machine = machine_for(config)
            if isinstance(self._machine, MirrorMachine):
                self._machine.expect(range(config["ranks"]))

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Check one event, and let its thread remember it."""
        assert self._machine is not None
        scheduler, thread = self._scheduler, self._scheduler.current
        scheduler.events, self._digest = scheduler.events + 1, None
        event = Event(scheduler.events, thread.name if thread else "main", action, args, post)
        if thread is not None:
            scheduler.steps[-1].events.append(event)
            thread.seen.append((action, args, post))
            self._check_guarded(action, thread.name)
        try:
            self._machine.take(event)
        except RejectedError as rejection:
            scheduler.find(Finding.of_rejection(action, rejection))
        except _MALFORMED as error:
            scheduler.find(Finding("rejected", f"{action}: the event is well formed: {error!r}", ("TaskChain",)))

    def _check_guarded(self, action: str, thread: str) -> None:
        """Find an action outside of its critical section: one at a time, threads would never show it."""
        lock = ACTIONS[action].lock if isinstance(self._machine, Machine) and action in ACTIONS else None
        if lock is not None and (f"the {lock} lock", thread) not in self._scheduler.held():
            says = f"{thread} does {action} without the {lock} lock"
            self._scheduler.find(Finding("unguarded", says, ("OneInSection",)))

    def close(self) -> None:
        """Check what must hold after the last event."""
        assert self._machine is not None
        try:
            self._machine.end()
        except RejectedError as rejection:
            self._scheduler.finding = self._scheduler.finding or Finding.of_rejection("the end", rejection)

    def state(self) -> bytes:
        """A digest of the checker's state."""
        if self._digest is None:
            self._digest = digest(self._machine)
        return self._digest
