"""The in-process checker: one event after the other against the rules.

It shares the declarations of the package (the registry of actions, the trace schema) and nothing else: what
follows from an event is computed from the rules and compared with what the code logged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.actions import ACTIONS
from palimpsest.trace import SCHEMA_VERSION, Event

from .state_rules import StateRules
from .tables import State
from .verdict import RejectedError, TraceError, Verdict
from .write_rules import WriteRules

#: fields that are arrays over rows
_OVER_ROWS = frozenset({"slots", "versions", "sources", "status", "tenant", "version", "writer", "counts"})
_CONFIG = ("num_blocks", "block_size", "pages", "budget_bytes")


class Machine(StateRules, WriteRules):
    """A state of the specification that takes the events of a trace."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(State(config))

    def take(self, event: Event) -> None:
        """Take one event. Raises `RejectedError` when the specification does not allow it."""
        if event.action not in ACTIONS:
            raise RejectedError("guard", "the action is known", ("TaskChain",), event.action, {})
        getattr(self, event.action)(event.args, event.post)


def replay(name: str, config: dict[str, Any], events: Iterable[Event]) -> Verdict:
    """The verdict on a whole trace; it stops at the first event that is rejected."""
    machine, counts, accepted = Machine(config), Counter[str](), 0
    events = list(events)
    for event in events:
        if (rejection := _refused(machine, event, accepted + 1)) is not None:
            return Verdict(name, len(events), accepted, rejection, event.seq, event.action, dict(counts))
        counts[event.action] += 1
        accepted += 1
    if events and (rejection := _refused_end(machine)) is not None:
        return Verdict(name, len(events), accepted, rejection, events[-1].seq, "the end", dict(counts))
    return Verdict(name, len(events), accepted, actions=dict(counts))


def _refused(machine: Machine, event: Event, due: int) -> RejectedError | None:
    try:
        if event.seq != due:
            return RejectedError(
                "guard", "events follow one another", ("ReleasedOnce",), f"number {event.seq} where {due} is due", {}
            )
        machine.take(event)
    except RejectedError as rejection:
        return rejection
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return RejectedError("guard", "the event is well formed", ("TaskChain",), repr(error), machine.s.excerpt())
    return None


def _refused_end(machine: Machine) -> RejectedError | None:
    try:
        machine.end()
    except RejectedError as rejection:
        return rejection
    return None


def load(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """Configuration and events of an NDJSON trace, in the order of their sequence numbers.

    Raises `TraceError` naming file and line for what is not a whole trace.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if not lines:
        raise TraceError(f"{path}: empty")
    if not lines[-1].endswith("\n"):
        raise TraceError(f"{path}:{len(lines)}: truncated: the last line has no end")
    parsed = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    head = parsed[0]
    if head.get("schema") != SCHEMA_VERSION:
        raise TraceError(f"{path}:1: schema {head.get('schema')!r}, and this checker reads {SCHEMA_VERSION}")
    if missing := [name for name in _CONFIG if name not in head.get("config", {})]:
        raise TraceError(f"{path}:1: the header's config lacks {missing}")
    if len(parsed) == 1:
        raise TraceError(f"{path}: no events")
    events = [_event(path, number, line) for number, line in enumerate(parsed[1:], 2)]
    return head["config"], sorted(events, key=lambda event: event.seq)


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TraceError(f"{path}:{number}: not an object")
    return value


def _arrays(value: dict[str, Any]) -> dict[str, Any]:
    """The arrays of an event as arrays again: what is over rows, told by its name."""
    return {name: _array(item) if name in _OVER_ROWS else _inside(item) for name, item in value.items()}


def _array(item: Any) -> Any:
    if isinstance(item, list) and not (item and isinstance(item[0], dict)):
        return np.asarray(item, dtype=np.int64)
    return _inside(item)


def _inside(item: Any) -> Any:
    if isinstance(item, dict):
        return _arrays(item)
    if isinstance(item, list) and item and isinstance(item[0], dict):
        return [_arrays(entry) for entry in item]
    return item


def _event(path: Path, number: int, line: dict[str, Any]) -> Event:
    try:
        return Event(int(line["seq"]), line["thread"], line["action"], _arrays(line["args"]), _arrays(line["post"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}:{number}: an event lacks {error}") from error
