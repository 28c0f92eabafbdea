"""Making one thing of a trace wrong, in every way that there is, and finding out what the checker says.

`Replayed` keeps the checker's state before each event that is to be corrupted, so that a corruption costs the
events after it only until it is found.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from palimpsest.trace import Event
from palimpsest_model_check.replay.machine import machine_for
from palimpsest_model_check.replay.verdict import RejectedError

Place = tuple[Any, ...]


@dataclass(frozen=True)
class Corruption:
    """What was done to event number `at` (from 0), and the events that take its place and its neighbor's."""

    at: int
    action: str
    what: str
    events: tuple[Event, ...]
    #: how many events of the trace they replace
    replaces: int = 1


@dataclass(frozen=True)
class Outcome:
    """What the checker said: at which of the events after the corruption it was found (0 is the event itself),
    or that it was accepted, and whether it then led to the state that the true trace leads to."""

    corruption: Corruption
    found_after: int | None
    same_end: bool = False
    rejection: RejectedError | None = None


class Replayed:
    """A true trace, replayed, with the states on its way."""

    def __init__(self, config: dict[str, Any], events: list[Event], at: set[int]) -> None:
        self.config, self.events = config, events
        self._before: dict[int, bytes] = {}
        machine = machine_for(config)
        for number, event in enumerate(events):
            if number in at:
                self._before[number] = pickle.dumps(machine.s)
            machine.take(event)
        machine.end()
        self.end = frozen_state(machine)

    def try_out(self, corruption: Corruption) -> Outcome:
        """Replay the trace with the corruption in it."""
        machine = machine_for(self.config)
        machine.s = pickle.loads(self._before[corruption.at])
        rest = self.events[corruption.at + corruption.replaces :]
        taken = 0
        try:
            for event in (*corruption.events, *rest):
                machine.take(event)
                taken += 1
            machine.end()
        except RejectedError as rejection:
            return Outcome(corruption, taken, rejection=rejection)
        return Outcome(corruption, None, frozen_state(machine) == self.end)


def frozen_state(machine: Any) -> str:
    """All that the specification knows, as a text."""
    return json.dumps(_told(vars(machine.s)), default=str, sort_keys=True)


def _told(value: Any) -> Any:
    if hasattr(value, "__slots__") and not isinstance(value, (np.ndarray, np.generic)):
        return {name: _told(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, dict):
        return {str(key): _told(item) for key, item in value.items() if str(key)[:1] != "_"}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple, deque)):
        return [_told(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return _told(vars(value)) if hasattr(value, "__dict__") else value


# -------------------------------------------------------------------- of an event as a whole


def dropped(events: list[Event], at: int) -> Corruption:
    return Corruption(at, events[at].action, "dropped", ())


def doubled(events: list[Event], at: int) -> Corruption:
    return Corruption(at, events[at].action, "doubled", (events[at], events[at]))


def swapped(events: list[Event], at: int) -> Corruption:
    pair = f"{events[at].action} and {events[at + 1].action}"
    return Corruption(at, pair, "swapped", (events[at + 1], events[at]), replaces=2)


# -------------------------------------------------------------------- of one field


def changed_fields(events: list[Event], at: int, words: list[str], per_list: int = 2) -> Iterator[Corruption]:
    """Every field of `args` and `post` changed in every way: of a long list `per_list` entries at its ends."""
    event = events[at]
    for side in ("args", "post"):
        for path in list(_places(getattr(event, side), per_list)):
            for how, value in _others(_at(getattr(event, side), path), words):
                forged = event._replace(**{side: _with(getattr(event, side), path, value)})
                name = ".".join("#" if isinstance(step, int) else str(step) for step in (side, *path))
                yield Corruption(at, event.action, f"{name} {how}", (forged,))


def _places(value: Any, per_list: int, path: Place = ()) -> Iterator[Place]:
    if path:
        yield path
    if isinstance(value, np.ndarray) and value.ndim == 2:  # a line is changed number by number
        yield from ((*path, 0, column) for column in range(value.shape[1]))
        yield (*path, len(value) - 1, 0)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _places(item, per_list, (*path, name))
    elif isinstance(value, (list, tuple, np.ndarray)):
        for number in sorted({*range(min(per_list, len(value))), *range(len(value))[-1:]}):
            yield from _places(value[number], per_list, (*path, number))


def _others(value: Any, words: list[str]) -> Iterator[tuple[str, Any]]:
    """What a value may wrongly be."""
    if isinstance(value, (bool, np.bool_)):
        yield "flipped", not value
    elif isinstance(value, (int, np.integer)):
        yield from (("+1", value + 1), ("-1", value - 1), ("+7", value + 7))
        if value:
            yield "0", 0
    elif isinstance(value, str):
        yield from ((f"{word!r}", word) for word in [*words, "nobody"] if word != value)
    elif isinstance(value, np.ndarray):
        if len(value) > 1:
            yield "without its first", value[1:]
            yield "its last twice", np.concatenate([value, value[-1:]])
    elif isinstance(value, list):
        if value:
            yield "without its first", value[1:]
            yield "its last twice", [*value, value[-1]]
    elif isinstance(value, dict) and value:
        name = next(iter(value))
        yield f"without {name}", {other: item for other, item in value.items() if other != name}


def _at(value: Any, path: Place) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(value: Any, path: Place, new: Any) -> Any:
    """A copy of `value` with `new` at `path`."""
    if not path:
        return new
    if isinstance(value, np.ndarray):
        changed = value.copy()
        changed[path[0]] = _with(value[path[0]], path[1:], new)
        return changed
    if isinstance(value, tuple):
        return tuple(_with(item, path[1:], new) if n == path[0] else item for n, item in enumerate(value))
    changed = copy.copy(value)
    changed[path[0]] = _with(value[path[0]], path[1:], new)
    return changed
