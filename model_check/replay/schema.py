"""What an event's `args` and `post` are made of, action by action, and how a line's JSON becomes them.

A kind is a function that gives the value as the code had it (arrays over rows as arrays) or raises `MalformedError`
saying what it is instead: nothing is taken for something else, nothing is left out, nothing is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from sys import intern
from typing import Any

import numpy as np

from palimpsest.lifecycle import TaskState

from .tables import NO_ROWS, IntArray

Kind = Callable[[Any], Any]

_STATES = frozenset(state.name for state in TaskState)
_ONLY_INTS, _ONLY_WORDS = {int}, {str}


class MalformedError(ValueError):
    """A value that is not of its kind."""


def _not(what: str, value: Any) -> MalformedError:
    return MalformedError(f"{repr(value)[:60]} is not {what}")


def _exactly(of: type, what: str) -> Kind:
    def parse(value: Any) -> Any:
        if type(value) is not of:
            raise _not(what, value)
        return value

    return parse


number, truth = _exactly(int, "an integer"), _exactly(bool, "true or false")


def word(value: Any) -> str:
    """A string. Equal ones are one object, here and in lists: a replay compares and looks them up all the time."""
    if type(value) is not str:
        raise _not("a string", value)
    return intern(value)


def numbers(value: Any) -> list[int]:
    """A list of integers."""
    if type(value) is not list or (value and set(map(type, value)) != _ONLY_INTS):
        raise _not("a list of integers", value)
    return value


def words(value: Any) -> list[str]:
    """A list of strings."""
    if type(value) is not list or (value and set(map(type, value)) != _ONLY_WORDS):
        raise _not("a list of strings", value)
    return list(map(intern, value))


def rows(value: Any) -> IntArray:
    """A list of integers, as an array."""
    return NO_ROWS if value == [] else _array(numbers(value))


def _array(values: list[int], width: int = 0) -> IntArray:
    try:
        return _shared(np.array(values, dtype=np.int64).tobytes(), np.int64, width)
    except OverflowError as error:
        raise MalformedError(str(error)) from error


@lru_cache(maxsize=1024)
def _shared(content: bytes, of: type, width: int = 0) -> IntArray:
    """An array that cannot be changed, of lines of a `width` or flat. Equal ones that stand close together are one
    object: a replay compares them."""
    array: IntArray = np.frombuffer(content, dtype=of)
    return array.reshape(-1, width) if width else array


def levels(value: Any) -> IntArray:
    """A list of 0, 1 and 2, as a narrow array: states of slots, sources of rows."""
    if not {0, 1, 2}.issuperset(numbers(value)):
        raise _not("a list of 0, 1 and 2", value)
    return _shared(bytes(value), np.int8)


def table(value: Any) -> IntArray:
    """Lines of integers, all of one length, as an array: the identities of rows."""
    if type(value) is not list or not value or set(map(type, value)) != {list}:
        raise _not("a list of lines", value)
    if len(widths := set(map(len, value))) > 1 or not (width := widths.pop()):
        raise MalformedError("its lines are not of one length")
    return _array(numbers(list(chain.from_iterable(value))), width)


def maybe(kind: Kind) -> Kind:
    """`kind`, or null."""
    return lambda value: None if value is None else kind(value)


def holder(value: Any) -> tuple[str, int]:
    """Who keeps a page busy: a step or a task."""
    if type(value) is not list or list(map(type, value)) != [str, int] or value[0] not in ("step", "task"):
        raise _not('["step" or "task", number]', value)
    return intern(value[0]), value[1]


def several(kind: Kind) -> Kind:
    """A list of a kind."""

    def parse(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _not("a list", value)
        return [kind(item) for item in value]

    return parse


def by_name(kind: Kind) -> Kind:
    """An object whose fields are keys of rows, each of a kind."""

    def parse(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _not("an object", value)
        return {intern(name): _field(name, kind, item) for name, item in value.items()}

    return parse


def states(value: Any) -> dict[int, str]:
    """The states of tasks by their number."""
    if type(value) is not dict or not all(tid.isdecimal() for tid in value):
        raise _not("an object of tasks by their number", value)
    if any(type(state) is not str or state not in _STATES for state in value.values()):
        raise _not("the states of tasks", value)
    return {int(tid): intern(state) for tid, state in value.items()}


def _field(name: str, kind: Kind, value: Any) -> Any:
    try:
        return kind(value)
    except MalformedError as error:
        raise MalformedError(f"{name}: {error}") from error


def record(**kinds: Kind) -> Kind:
    """An object with exactly these fields."""
    names, items = kinds.keys(), list(kinds.items())

    def parse(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _not("an object", value)
        if value.keys() != names:
            lacks, unknown = sorted(names - value.keys()), sorted(value.keys() - names)
            raise MalformedError(f"fields that it lacks: {lacks}; fields that nobody knows: {unknown}")
        return {name: _field(name, kind, value[name]) for name, kind in items}

    return parse


_NONE, _TIDS = record(), record(tids=numbers)
_STAGED, _STATES_AFTER = record(staged_bytes=number), record(tasks=states)
_QUEUES, _RECORDS = record(hi=numbers, lo=numbers), record(completed=numbers, failed=numbers)
_HOLDERS, _PENDING = record(holders=several(holder)), record(pending=number)
_COPY, _TAGS = record(step=number, page=number, keys=words), record(tags=by_name(table))
_KEY_SLOTS = record(version=rows, status=levels, writer=rows)
_SLOTS = record(slots=rows, tenant=rows, keys=by_name(_KEY_SLOTS))
_READS = several(
    record(read=number, request=word, key=word, slots=rows, versions=rows, sources=levels, joins=numbers),
)
_DRAINED = record(written=numbers, failed=numbers, status=several(record(key=word, slots=rows, status=levels)))
_PUBLISH = record(
    step=number, page=number, requests=words, counts=numbers, slots=rows, immediate=words, deferred=words,
    nbytes=number,
)  # fmt: skip
_PUBLISHED = record(
    preserved=several(record(read=number, rows=rows)), dropped=numbers, retired=rows, tids=numbers, takers=numbers,
    opened=numbers, closed=numbers, lost=several(record(tid=number, key=word, slots=rows)), reads=_READS,
    slots=_SLOTS, holders=several(holder),
)  # fmt: skip
_BEGIN = record(ended=words, hits=several(record(request=word, blocks=numbers)), allocated=numbers)
_POOL_ROWS = record(rows=several(record(key=word, slots=rows, tids=rows, tags=by_name(table))))

#: action: what its `args` are, and its `post`
FORMS: dict[str, tuple[Kind, Kind]] = {
    "begin_step": (_BEGIN, record(dropped=numbers, sealed=numbers, reads=_READS, retired=_SLOTS)),
    "drain": (_NONE, _DRAINED),
    "seal_oldest": (_NONE, record(sealed=numbers, flushed=numbers)),
    "escalate": (_TIDS, _QUEUES),
    "join_begin": (_TIDS, _STATES_AFTER),
    "join_end": (_TIDS, _STATES_AFTER),
    "reserve": (record(nbytes=number, fits=truth), _STAGED),
    "unreserve": (record(nbytes=number), _STAGED),
    "claim_page_begin": (record(holder=holder), _NONE),
    "claim_page_end": (record(holder=holder, page=number), _HOLDERS),
    "freeze": (_COPY, _TAGS),
    "publish": (_PUBLISH, _PUBLISHED),
    "dispatch": (_TIDS, _QUEUES),
    "take_step": (record(step=number), record(steps=numbers)),
    "discard_step": (record(step=number), record(dropped=numbers, steps=numbers)),
    "release_page": (record(page=number, left=several(holder)), _HOLDERS),
    "begin_fetch": (record(read=number), record(fetching=truth)),
    "end_fetch": (record(read=number), record(preserved=numbers, tags=maybe(table), pending=number)),
    "drop_read": (record(reads=numbers), _PENDING),
    "claim_copy": (_TIDS, _QUEUES),
    "host_ready": (_TIDS, record(tasks=states, staged_bytes=number)),
    "begin_pool_write": (_TIDS, _POOL_ROWS),
    "complete": (_TIDS, _RECORDS),
    "fail": (_TIDS, record(tasks=states, staged_bytes=number)),
    "record_failure": (_TIDS, _RECORDS),
    "wake": (_TIDS, _STATES_AFTER),
    "reset": (_NONE, record(sealed=numbers)),
    "shutdown_begin": (_NONE, _NONE),
    "shutdown_end": (_NONE, record(dropped=numbers, steps=numbers)),
    "copy_lands": (_COPY, _TAGS),
    "overwrite_live": (_NONE, _NONE),
}
