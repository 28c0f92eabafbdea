"""A scripted hold of the cache's prefetch thread, so that reads stay pending while their blocks are reused.

On a small machine the prefetch thread is nearly always done before the next step is saved, and what a
cache does when it is not would hardly ever run. The reference runner holds the thread over the next save
in most steps that have hits. It is a gate, not a sleep: which steps are held depends on the schedule only.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor

from palimpsest.sync import StandardSync


class HoldableSync(StandardSync):
    """The standard primitives, with gates in front of what its executors are given."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._executors: list[Executor] = []

    def executor(self, name: str) -> Executor:
        """An executor of one thread, which `hold` reaches."""
        executor = super().executor(name)
        self._executors.append(executor)
        return executor

    def hold(self) -> threading.Event:
        """A gate: whatever the executors are given from now on waits until it is set."""
        gate = threading.Event()
        for executor in self._executors:
            executor.submit(gate.wait, self._timeout_s)
        return gate


#: steps with hits that the script repeats after
HOLD_PERIOD = 4


class HoldScript:
    """Holds the first `held` of each `HOLD_PERIOD` steps with hits until the step after them is saved."""

    def __init__(self, sync: HoldableSync, held: int) -> None:
        if not 0 <= held <= HOLD_PERIOD:
            raise ValueError(f"0 to {HOLD_PERIOD} of {HOLD_PERIOD} steps can be held, not {held}")
        self._sync, self._held, self._seen = sync, held, 0
        #: gates of the present step and of the one before it
        self._gate: threading.Event | None = None
        self._earlier: threading.Event | None = None

    def before_step(self, has_hits: bool) -> bool:
        """To be called before a step begins; gives whether it is held."""
        held = has_hits and self._seen % HOLD_PERIOD < self._held
        self._seen += has_hits
        self._open(self._earlier)
        self._earlier, self._gate = self._gate, self._sync.hold() if held else None
        return held

    def after_save(self) -> None:
        """To be called once a step is saved: what the step before it planned goes on."""
        self._open(self._earlier)

    def release(self) -> None:
        """To be called when no step follows at once, and at the end: nothing is held any more."""
        self._open(self._earlier)
        self._open(self._gate)

    @staticmethod
    def _open(gate: threading.Event | None) -> None:
        if gate is not None:
            gate.set()
