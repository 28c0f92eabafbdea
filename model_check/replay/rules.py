"""How a rule speaks: guards that must hold, post-states that must be what the code logged.

A rule takes the arguments of an event, the post-state that the code logged, and the thread. What it refuses it
refuses with `reject` (a guard) or `differ` (a variable): both raise, and are only called when something is wrong,
so that the words cost nothing where all is right.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import numpy as np

from .state import State
from .tables import IntArray
from .verdict import PROPERTIES_OF, RejectedError

Args = dict[str, Any]


class Rules:
    """Guards and comparisons on a state."""

    def __init__(self, state: State) -> None:
        self.s = state

    def reject(self, guard: str, breaks: str, says: str = "is false", slots: IntArray | None = None) -> NoReturn:
        """Refuse the event: `guard` does not hold, and the property `breaks` rests on it."""
        raise RejectedError("guard", guard, (breaks,), says, self.s.excerpt(slots))

    def same(self, variable: str, spec: Any, logged: Any) -> None:
        """Refuse the event unless the rule's post-state of `variable` is the logged one."""
        if spec != logged:
            self.differ(variable, spec, logged)

    def same_rows(self, variable: str, spec: IntArray, logged: IntArray, slots: IntArray) -> None:
        """As `same`, for arrays over `slots`."""
        if spec is logged:
            return
        if spec.shape != logged.shape:
            self.differ(variable, spec.tolist(), logged.tolist(), slots)
        # comparing the bytes takes a third of the time of comparing the numbers
        if spec.dtype == logged.dtype and spec.tobytes() == logged.tobytes():
            return
        if (spec != logged).any():
            at = np.flatnonzero((spec != logged).reshape(spec.shape[0], -1).any(axis=1))
            self.differ(variable, spec[at][:8].tolist(), logged[at][:8].tolist(), slots[at])

    def same_for_each(self, variable: str, spec: IntArray, logged: list[IntArray], slots: IntArray) -> None:
        """As `same_rows`, for what was logged of several keys, which have the same."""
        told, same = spec.tobytes(), None
        for rows in logged:
            if rows is same:
                continue
            same = rows
            if rows.tobytes() != told or rows.dtype != spec.dtype or rows.shape != spec.shape:
                self.same_rows(variable, spec, rows, slots)

    def same_everywhere(self, variable: str, spec: int, logged: IntArray, slots: IntArray) -> None:
        """As `same_rows`, for a value that is the same on all `slots`."""
        if logged.tobytes() != spec.to_bytes(logged.itemsize, sys.byteorder) * slots.size:
            self.same_rows(variable, np.full(slots.shape, spec), logged, slots)

    def differ(self, variable: str, spec: Any, logged: Any, slots: IntArray | None = None) -> NoReturn:
        """Refuse the event: the rule gives `spec` for `variable`, and the code logged something else."""
        where = "" if slots is None else f" at slots {slots[:8].tolist()}"
        says = f"the specification has {spec!r}{where}, the code logged {logged!r}"
        raise RejectedError("post", variable, PROPERTIES_OF.get(variable, ("TaskChain",)), says, self.s.excerpt(slots))

    # ---------------------------------------------------------------- guards that many rules share

    def open(self) -> None:
        """The cache was not shut down."""
        if self.s.closed:
            self.reject("the cache is open", "ReleasedOnce")

    def loud(self) -> None:
        """No failed write was drained."""
        if self.s.failure:
            self.reject("no write has failed", "FailLoud")

    def wait_ran_out(self, action: str, thread: str) -> None:
        """The thread does something else than ending its wait: it gave up, and what it waited for does not go on."""
        s, tids = self.s, self.s.waits.pop(thread)
        if action not in ("end_fetch", "reserve", "claim_page_begin"):
            return
        # a save that is tried again does not wait for what has ended since, nor for what a flush waited for
        left = [tid for tid in tids if not s.has_ended(tid) and (action == "end_fetch" or tid in s.last_step)]
        if left:
            self.reject("its wait has ended", "RecordBeforeWake", f"{thread!r} waits for {left}")

    def handed_over(self) -> None:
        """What the engine took out of its own hands was given to the committer before it goes on."""
        s = self.s
        if s.to_dispatch:
            self.reject("the last step's tasks were dispatched", "EveryTaskEnds", f"{s.to_dispatch}")
        left = [tid for tid in s.to_escalate if tid in s.tasks and s.tasks[tid].state == "PENDING"]
        if left:
            self.reject("closed tasks were escalated", "EveryTaskEnds", f"{left}")
