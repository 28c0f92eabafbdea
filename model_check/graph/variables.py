"""The variables of a state, as Python has them."""

from __future__ import annotations

from typing import Any

from ..values import Function
from .dump import State


def code_name(action: str) -> str:
    """`BeginStep` as the registry of actions has it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in action).lstrip("_")


class Variables:
    """The variables of one state; functions and records are dictionaries."""

    #: keys that are written at each step
    immediate = frozenset({"h"})

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return _opened(self._state[name])

    def of(self, name: str) -> dict[Any, Any]:
        """A variable that is a function; TLC prints one of 1..n as a sequence."""
        value = self._state[name]
        pairs = list(enumerate(value, 1)) if isinstance(value, tuple) else value.items()  # type: ignore[union-attr]
        return {key: _opened(each) for key, each in pairs}


def _opened(value: Any) -> Any:
    if isinstance(value, Function):
        return {key: _opened(each) for key, each in value.items()}
    return tuple(map(_opened, value)) if isinstance(value, tuple) else value
