"""The Informal Trace Format of Apalache (its ADR 15), which the ITF trace viewer and other tools read.

Of a counterexample it has the specification's own variables; of a trace or a schedule the action, its thread, and what
each slot, page, task and read was.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..values import Function, ModelValue, Text, Value, format_value
from .of_counterexample import Saved
from .picture import Picture, ViewError

#: a state has every strip in it, so a long trace of a large cache is too much
_MOST_ENTRIES = 3_000_000
_FIELD = re.compile(r"[A-Za-z_]\w*")
_EXACT = 2**53


def itf(path: Path, picture: Picture) -> dict[str, Any]:
    """The file at `path`, whose picture is `picture`, for `json.dump`. Raises `ViewError` for a trace that is too
    long."""
    return itf_of_counterexample(Saved.load(path)) if picture.kind == "counterexample" else itf_of_picture(picture)


def itf_of_counterexample(saved: Saved) -> dict[str, Any]:
    """A saved counterexample; where it goes on for ever, `loop` is the state that follows the last one."""
    names = sorted(saved.steps[0].state)
    states = [
        {
            "#meta": {"index": at, "action": step.action, "thread": step.thread},
            **{name: itf_value(step.state[name]) for name in names},
        }
        for at, step in enumerate(saved.steps)
    ]
    meta = {"format": "ITF", "source": saved.model, "violated": saved.violated, "description": saved.says}
    loop = next((at for at, step in enumerate(saved.steps) if step.number == saved.back_to), None)
    ends = {} if loop is None else {"loop": loop}
    return {"#meta": meta, "vars": names, "states": states, **ends}


def itf_value(value: Value) -> Any:
    """A value as ITF writes it: tuples, sets, maps and large numbers are marked, records are objects."""
    match value:
        case bool() | str():
            return value
        case int():
            return value if abs(value) < _EXACT else {"#bigint": str(value)}
        case tuple():
            return {"#tup": [itf_value(each) for each in value]}
        case frozenset():
            return {"#set": [itf_value(each) for each in sorted(value, key=format_value)]}
        case Function() if value.pairs and all(
            isinstance(key, str) and _FIELD.fullmatch(key) for key, _ in value.pairs
        ):
            return {str(key): itf_value(each) for key, each in value.items()}
        case Function():
            return {"#map": [[itf_value(key), itf_value(each)] for key, each in value.items()]}
        case ModelValue():
            return value.name
        case Text():
            return {"#unserializable": value.text}


def itf_of_picture(picture: Picture) -> dict[str, Any]:
    """A trace or a schedule. Raises `ViewError` where it is too long."""
    entries = len(picture.moments) * len(picture.strips)
    if entries > _MOST_ENTRIES:
        raise ViewError(
            f"{picture.title}: {len(picture.moments):,} states of {len(picture.strips):,} strips are {entries:,} "
            f"values, and the limit of an ITF file is {_MOST_ENTRIES:,}; --perfetto has none"
        )
    groups = sorted({strip.group for strip in picture.strips})
    meta = {"format": "ITF", "source": picture.title, "description": picture.about}
    now: dict[str, dict[str, str]] = {group: {} for group in groups}
    changes = _changes(picture)
    states = []
    for at, moment in enumerate(picture.moments):
        for group, name, label in changes.get(at, ()):
            now[group].pop(name, None) if label is None else now[group].update({name: label})
        said = {f"{group}s": {"#map": [[name, label] for name, label in now[group].items()]} for group in groups}
        states.append({"#meta": {"index": at}, "action": moment.action, "thread": moment.thread, **said})
    return {"#meta": meta, "vars": ["action", "thread", *(f"{group}s" for group in groups)], "states": states}


def _changes(picture: Picture) -> dict[int, list[tuple[str, str, str | None]]]:
    """By moment: what each strip is from then on; None where it is gone."""
    found: dict[int, list[tuple[str, str, str | None]]] = {}
    for place, strip in enumerate(picture.strips):
        name = strip.name if strip.name != f"{strip.group}s" else f"{strip.name} {place}"
        for piece in strip.pieces:
            found.setdefault(piece.stop, []).insert(0, (strip.group, name, None))
            found.setdefault(piece.start, []).append((strip.group, name, piece.label))
    return found
