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
import orjson

SCHEMA_VERSION = 1


class Event(NamedTuple):
    """One action as it happened."""

    seq: int
    thread: str
    action: str
    args: dict[str, Any]
    post: dict[str, Any]


_AS_IT_IS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


def _plain(value: Any) -> Any:
    """What orjson does not write by itself: arrays that are not contiguous, sets, named tuples."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"a trace cannot say {value!r}, a {type(value).__name__}")


def as_line(value: Any) -> bytes:
    """`value` as a line of NDJSON."""
    return orjson.dumps(value, _plain, _AS_IT_IS)


def plain(value: Any) -> Any:
    """`value` as a reader of its line has it: lists, and names as strings."""
    return orjson.loads(as_line(value))


def event_line(event: Event) -> bytes:
    """The event as it stands in an NDJSON trace."""
    return as_line(event._asdict())


def header_line(config: dict[str, Any], **more: Any) -> bytes:
    """What stands before the events."""
    return as_line({"schema": SCHEMA_VERSION, "config": config, **more})
