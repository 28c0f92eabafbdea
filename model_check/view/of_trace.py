"""A trace as a picture: replayed in process, up to the first event that is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.actions import ACTIONS
from palimpsest.trace import Event
from palimpsest.trace.events import plain

from ..replay.machine import load
from ..replay.verdict import RejectedError, TraceError
from ..tlc_replay.roles import Roles
from ..words import in_words
from .machine_strips import MachineStrips
from .picture import Failure, Moment, Picture, Spans, ViewError, in_order

_LONGEST = 120


def trace_picture(path: Path) -> Picture:
    """The picture of an NDJSON trace. Raises `ViewError` for what is not a whole trace."""
    try:
        config, events = load(path)
    except TraceError as error:
        raise ViewError(str(error)) from error
    return picture_of(path.name, config, events)


def picture_of(name: str, config: dict[str, Any], events: list[Event]) -> Picture:
    """The picture of these events of a cache with this configuration."""
    watched = MachineStrips(config)
    failure = _replayed(watched, events)
    roles, spans = Roles(events), Spans()
    moments = tuple(_moment(event, roles) for event in events)
    for at, moment in enumerate(moments):
        spans.note(moment.thread, moment.lane, moment.action, at)
    known = len(events) if failure is None or failure.at is None else failure.at + 1
    strips, touches = watched.strips.finish(known)
    touches += ((),) * (len(events) - known)
    size = f"{config['num_blocks']} blocks of {config['block_size']} slots, {config['pages']} staging pages"
    about = f"{len(events):,} events; {size}; slots that nobody claimed are left out"
    lanes = in_order(moment.lane for moment in moments)
    return Picture(name, "trace", about, lanes, moments, strips, touches, tuple(spans.found), failure)


def _replayed(watched: MachineStrips, events: list[Event]) -> Failure | None:
    at = 0
    try:
        for at, event in enumerate(events):
            watched.machine.due(event.seq, at + 1)
            watched.take(event, at)
        watched.machine.end()
    except RejectedError as error:
        return rejected(error, at, events[at])
    return None


def rejected(error: RejectedError, at: int, event: Event) -> Failure:
    """What a rejection of `event`, moment `at`, says."""
    what = "the guard" if error.kind == "guard" else "the post-state of"
    says = f"event {event.seq}, {event.action}, is not one of the protocol: {what} {error.name!r}: {error.says}"
    values = [("the event's arguments", _short(plain(event.args))), ("what it left", _short(plain(event.post)))]
    values += [(name, _short(value)) for name, value in error.state.items()]
    return Failure(at, says, tuple((name, in_words(name)) for name in error.properties), tuple(values))


def _moment(event: Event, roles: Roles) -> Moment:
    return Moment(event.seq, roles.of(event), event.thread, event.action, notes_of(event))


def notes_of(event: Event) -> tuple[str, ...]:
    """What an action does, what the event was asked for and what it left; long arrays are shortened."""
    entry = ACTIONS.get(event.action)
    lock = f" (under the {entry.lock} lock)" if entry and entry.lock else ""
    does = [f"{entry.does}{lock}"] if entry else []
    asked = [f"{name} = {_short(value)}" for name, value in event.args.items()]
    left = [f"{name}' = {_short(value)}" for name, value in event.post.items() if _says_something(value)]
    return (*does, *asked, *left)


def _says_something(value: Any) -> bool:
    return bool(value.size) if isinstance(value, np.ndarray) else value not in ([], {}, None)


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: Any) -> str:
    match value:
        case np.ndarray():
            return _listed([*value[:6].tolist()], len(value) - 6)
        case dict():
            return "{" + ", ".join(f"{name}: {_text(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return _listed([_text(each) for each in value[:6]], len(value) - 6)
    return str(value)


def _listed(parts: list[Any], more: int) -> str:
    return f"[{', '.join(map(str, parts))}{f' and {more} more' if more > 0 else ''}]"
