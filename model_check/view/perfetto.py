"""A picture in the Chrome trace format, which Perfetto and chrome://tracing read.

Two processes: the threads with their moments, and the strips. A moment lasts a millisecond, since a trace has an order
and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .picture import Picture

_MOMENT_US = 1000
_THREADS, _STRIPS = 1, 2


def chrome_trace(picture: Picture) -> dict[str, Any]:
    """The picture for `json.dump`."""
    events = [*_names(picture), *_moments(picture), *_waits(picture), *_pieces(picture), *_failing(picture)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": picture.title}}


def _names(picture: Picture) -> Iterator[dict[str, Any]]:
    for pid, name in ((_THREADS, "threads"), (_STRIPS, "slots, pages, tasks")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    named = [(_THREADS, picture.lanes), (_STRIPS, [strip.name for strip in picture.strips])]
    for pid, names in named:
        for tid, name in enumerate(names, 1):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slice(pid: int, tid: int, name: str, start: int, length: int, category: str, **args: Any) -> dict[str, Any]:
    at = {"ts": start * _MOMENT_US, "dur": length * _MOMENT_US}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid + 1, **at, "args": args}


def _moments(picture: Picture) -> Iterator[dict[str, Any]]:
    lane = {name: row for row, name in enumerate(picture.lanes)}
    for at, moment in enumerate(picture.moments):
        says = {"number": moment.number, "thread": moment.thread, "notes": list(moment.notes)}
        yield _slice(_THREADS, lane[moment.lane], moment.action, at, 1, "action", **says)


def _waits(picture: Picture) -> Iterator[dict[str, Any]]:
    """Begin and end of what lasts, as asynchronous events: they overlap the moments of their thread."""
    lane = {name: row for row, name in enumerate(picture.lanes)}
    for number, (name, first, last, what) in enumerate(picture.spans):
        same = {"name": what, "cat": "wait", "id": number, "pid": _THREADS, "tid": lane[name] + 1}
        yield {"ph": "b", "ts": first * _MOMENT_US, **same}
        yield {"ph": "e", "ts": (last + 1) * _MOMENT_US, **same}


def _pieces(picture: Picture) -> Iterator[dict[str, Any]]:
    for row, strip in enumerate(picture.strips):
        for piece in strip.pieces:
            length = piece.stop - piece.start
            yield _slice(_STRIPS, row, piece.label, piece.start, length, strip.group, state=piece.state)


def _failing(picture: Picture) -> Iterator[dict[str, Any]]:
    failure = picture.failure
    if failure is None or failure.at is None:
        return
    name = f"FAILS: {', '.join(name for name, _ in failure.properties) or failure.what}"
    args = {"what": failure.what, "properties": dict(failure.properties), "values": dict(failure.values)}
    yield {"ph": "i", "s": "g", "name": name, "pid": _THREADS, "tid": 1, "ts": failure.at * _MOMENT_US, "args": args}
