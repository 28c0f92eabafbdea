"""How a rule speaks: guards that must hold, post-states that must be what the code logged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .tables import State
from .verdict import PROPERTIES_OF, RejectedError

IntArray = np.ndarray


class Rules:
    """Guards and comparisons on a state."""

    def __init__(self, state: State) -> None:
        self.s = state

    def guard(self, name: str, holds: bool, says: str = "", breaks: str = "TaskChain", slots: Any = None) -> None:
        """Reject unless `holds`."""
        if not holds:
            at = None if slots is None else np.asarray(slots)
            raise RejectedError("guard", name, (breaks,), says or "is false", self.s.excerpt(at))

    def same(self, variable: str, spec: Any, logged: Any, slots: Any = None) -> None:
        """Reject unless the rule's post-state of `variable` is the logged one."""
        if spec != logged:
            self._differ(variable, spec, logged, slots)

    def same_rows(self, variable: str, spec: IntArray, logged: Any, slots: IntArray) -> None:
        """As `same`, for an array over `slots`."""
        given = logged if isinstance(logged, np.ndarray) else np.asarray(logged, dtype=np.int64)
        if given.shape != spec.shape:
            self._differ(variable, spec.tolist(), given.tolist(), slots)
        if not (given == spec).all():
            at = np.flatnonzero((given != spec).reshape(spec.shape[0], -1).any(axis=1))
            self._differ(f"{variable}", spec[at][:8].tolist(), given[at][:8].tolist(), slots[at] if at.size else slots)

    def _differ(self, variable: str, spec: Any, logged: Any, slots: Any) -> None:
        at = None if slots is None else np.asarray(slots)
        where = "" if at is None else f" at slots {at[:8].tolist()}"
        breaks = PROPERTIES_OF.get(variable, ("TaskChain",))
        says = f"the specification has {spec!r}{where}, the code logged {logged!r}"
        raise RejectedError("post", variable, breaks, says, self.s.excerpt(at))


def ints(values: Any) -> IntArray:
    """An array of a logged list."""
    return values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.int64)


def pairs(holders: Iterable[Any]) -> list[tuple[str, int]]:
    """Logged holders, in order."""
    return sorted((str(kind), int(number)) for kind, number in holders)
