"""Reading a trace: a header, and events that are exactly what the schema says. Nothing is repaired."""

from __future__ import annotations

from pathlib import Path
from sys import intern
from typing import Any

import orjson

from palimpsest.trace import SCHEMA_VERSION, Event

from ..mirror_replay.schema import MIRROR_FORMS, SYSTEM, check_header
from .parts import parse_part
from .schema import FORMS, Kind, MalformedError, number, truth, word
from .verdict import TraceError

_CONFIG = {"num_blocks": number, "block_size": number, "pages": number, "budget_bytes": number}
_FIELDS = {"seq", "thread", "action", "args", "post"}


def load(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """Configuration and events of an NDJSON trace, in the order of their sequence numbers.

    Raises `TraceError` naming file and line for what is not a whole trace, and for an event with a field too many,
    too few, or of a wrong type.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines:
        raise TraceError(f"{path}: empty")
    if not lines[-1].endswith(b"\n"):
        raise TraceError(f"{path}:{len(lines)}: truncated: the last line has no end")
    config = _header(path, _parse(path, 1, lines[0]))
    forms = MIRROR_FORMS if config.get("system") == SYSTEM else FORMS
    events = [_event(path, place, _parse(path, place, line), forms) for place, line in enumerate(lines[1:], 2)]
    if "part" in config:  # what comes before the state is there to be read
        events = [event for event in events if event.seq > config["part"]["after"]]
    if not events:
        raise TraceError(f"{path}: no events")
    return config, sorted(events, key=lambda event: event.seq)


def _header(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    if head.get("schema") != SCHEMA_VERSION:
        raise TraceError(f"{path}:1: schema {head.get('schema')!r}, and this checker reads {SCHEMA_VERSION}")
    config = head.get("config")
    if isinstance(config, dict) and config.get("system") == SYSTEM:
        return _mirror_header(path, config)
    if not isinstance(config, dict) or (missing := [name for name in _CONFIG if name not in config]):
        raise TraceError(f"{path}:1: the header's config lacks {missing if isinstance(config, dict) else 'all'}")
    try:
        for name, kind in _CONFIG.items():
            if kind(config[name]) < 0:
                raise MalformedError(f"{config[name]} is negative")
        truth(config.get("eager", False))
    except MalformedError as error:
        raise TraceError(f"{path}:1: the header's config: {error}") from error
    if "part" in head:  # of a flight recorder
        config["part"] = parse_part(path, head["part"])
    return config


def _mirror_header(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    try:
        check_header(config)
    except MalformedError as error:
        raise TraceError(f"{path}:1: the header's config: {error}") from error
    return config


def _parse(path: Path, place: int, line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{path}:{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TraceError(f"{path}:{place}: not an object")
    return value


def _event(path: Path, place: int, line: dict[str, Any], kinds: dict[str, tuple[Kind, Kind]]) -> Event:
    if line.keys() != _FIELDS:
        lacks, unknown = sorted(_FIELDS - line.keys()), sorted(line.keys() - _FIELDS)
        raise TraceError(f"{path}:{place}: an event lacks {lacks}, and nobody knows its {unknown}")
    action = line["action"]
    if not isinstance(action, str) or (forms := kinds.get(action)) is None:
        raise TraceError(f"{path}:{place}: {action!r} is not an action")
    try:
        seq, thread = number(line["seq"]), word(line["thread"])
        return Event(seq, thread, intern(action), forms[0](line["args"]), forms[1](line["post"]))
    except MalformedError as error:
        raise TraceError(f"{path}:{place}: {action}: {error}") from error
