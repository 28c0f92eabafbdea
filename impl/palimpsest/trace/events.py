"""The trace event: what one action did, read from the real structures while its lock was held.

Schema (version 1). A trace is a header line `{"schema": 1, "config": {...}}` and one line per event:

| field | meaning |
| --- | --- |
| `seq` | position in the trace, taken under the lock that guards what the action touched |
| `thread` | name of the thread that did it |
| `action` | a name of `palimpsest.actions.ACTIONS` |
| `args` | what the action was asked for; arrays over the step's rows, one event per step and action |
| `post` | state of what it touched, after it |

Arrays are lists of integers; a tag of a delivered row is a list of the identity's columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SCHEMA_VERSION = 1


class Event(NamedTuple):
    """One action as it happened."""

    seq: int
    thread: str
    action: str
    args: dict[str, Any]
    post: dict[str, Any]


def plain(value: Any) -> Any:
    """`value` with NumPy arrays, tuples, sets and non-string keys turned into what JSON can say."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def as_json(event: Event) -> dict[str, Any]:
    """The event as it stands in an NDJSON trace."""
    return {
        "seq": event.seq,
        "thread": event.thread,
        "action": event.action,
        "args": plain(event.args),
        "post": plain(event.post),
    }
