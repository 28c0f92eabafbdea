"""A counterexample that `palimpsest check` saved, as a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.actions import ACTIONS

from ..counterexample import snake_case
from ..values import Function, Value, format_value, from_json
from .named import variables_of
from .picture import Failure, Moment, Picture, ViewError, in_order
from .strips import Key, Strips

_LONGEST = 240
#: the variables of a thread, by the thread
_OWN = {"eng": "engine", "bld": "builder", "com": "committer", "rdr.prefetch": "prefetch", "rdr.builder": "builder"}
#: the variables that have strips of their own
_STRIPPED = frozenset({"tenant", "version", "status", "writer", "holders", "tasks", "reads"})
_STATELESS = "VALUE"
_READ = re.compile(r"reads\[(.*?>>)\]")


@dataclass(frozen=True)
class SavedStep:
    """A step as it was saved."""

    number: int
    action: str
    thread: str
    changes: tuple[tuple[str, str | None, str | None], ...]
    state: Mapping[str, Value]


@dataclass(frozen=True)
class Saved:
    """A counterexample as it was saved."""

    model: str
    violated: str
    says: str
    steps: tuple[SavedStep, ...]
    back_to: int | None

    @classmethod
    def load(cls, path: Path) -> Saved:
        """The counterexample in a file. Raises `ViewError`."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            steps = tuple(map(_step, data["steps"]))
            back_to = None if data["back_to"] is None else int(data["back_to"])
            saved = cls(str(data["model"]), str(data["violated"]), str(data["says"]), steps, back_to)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ViewError(f"{path}: not a saved counterexample: {error!r}") from error
        if not saved.steps:
            raise ViewError(f"{path}: a counterexample without a step")
        return saved


def _step(data: dict[str, Any]) -> SavedStep:
    changes = tuple((str(each["place"]), each["old"], each["new"]) for each in data["changes"])
    state = {str(name): from_json(value) for name, value in data["state"].items()}
    return SavedStep(int(data["step"]), str(data["action"]), str(data["thread"]), changes, state)


def counterexample_picture(path: Path) -> Picture:
    """The picture of a saved counterexample. Raises `ViewError`."""
    saved = Saved.load(path)
    strips = Strips()
    for at, step in enumerate(saved.steps):
        for group, what, state, label in (*_known(step.state), *_others(saved, step.state)):
            strips.put((group, what), at, state, label)
        strips.touch(_rows_read(step), at)
        _end_those_gone(strips, step.state, at, saved.steps[at - 1].state if at else {})
    moments = tuple(map(_moment, saved.steps))
    lanes = in_order(moment.lane for moment in moments)
    about = f"{len(moments)} steps of the model {saved.model}, from its first state to the violation"
    back_to = next((at for at, step in enumerate(saved.steps) if step.number == saved.back_to), None)
    rows, touches = strips.finish(len(moments))
    return Picture(
        f"{saved.model} violates {saved.violated}", "counterexample", about, lanes, moments, rows, touches, (),
        _failure(saved), back_to,
    )  # fmt: skip


def _moment(step: SavedStep) -> Moment:
    lane = lane_of(step)
    entry = ACTIONS.get(snake_case(step.action.split("(")[0]))
    does = (entry.does,) if entry else ()
    if step.action == "Init":
        notes = tuple(f"{place} = {_short(new)}" for place, _, new in step.changes)
    else:
        notes = tuple(f"{place}: {_short(old)} -> {_short(new)}" for place, old, new in step.changes)
    return Moment(step.number, lane, lane, step.action, (*does, *notes))


def lane_of(step: SavedStep) -> str:
    """The thread of a step: as it was saved, or, where that is one of several, the one whose variables changed."""
    if step.action == "Init":
        return "scheduler"
    places = [place for place, _, _ in step.changes]
    if not step.thread:
        ranks = {match[1] for place in places if (match := re.match(r"(?:pc|at)\.(\w+)", place))}
        return f"rank {ranks.pop()}" if len(ranks) == 1 else "all ranks" if ranks else "device"
    possible = step.thread.split("/")
    if len(possible) == 1:
        return possible[0]
    entry = ACTIONS.get(snake_case(step.action.split("(")[0]))
    if entry is not None and entry.environment:
        return "device"
    said = [str(new).strip('"') for place, _, new in step.changes if place.startswith("lock.")]
    own = [thread for prefix, thread in _OWN.items() if any(place.startswith(prefix) for place in places)]
    return next((thread for thread in (*said, *own) if thread in possible), possible[0])


def _entries(value: Value | None) -> list[tuple[Value, Value]]:
    """The pairs of a function; TLC prints one on 1..n as a sequence."""
    if isinstance(value, Function):
        return value.items()
    return list(enumerate(value, 1)) if isinstance(value, tuple) else []


def _field(value: Value, name: str) -> Value | None:
    return value.as_dict().get(name) if isinstance(value, Function) else None


def _known(state: Mapping[str, Value]) -> Iterator[tuple[str, Any, str, str]]:
    """The state of each slot's keys, pages, tasks and reads, where the specification has them."""
    yield from _cells(state)
    for page, holders in _entries(state.get("holders")):
        held = _plain(holders)
        yield "page", page, "HELD" if held else "FREE", f"page {_plain(page)} {held or 'free'}"
    for tid, task in _entries(state.get("tasks")):
        name = _plain(_field(task, "state") or "?")
        yield "task", tid, name, f"task {_plain(tid)} {_plain(_field(task, 'req') or '')} {name}"
    for hit, read in _entries(state.get("reads")):
        name = _plain(_field(read, "st") or "?")
        yield "read", format_value(hit), name.upper(), f"read {_plain(hit)} {name}"


def _cells(state: Mapping[str, Value]) -> Iterator[tuple[str, Any, str, str]]:
    tenants, versions = dict(_entries(state.get("tenant"))), dict(_entries(state.get("version")))
    for cell, status in _entries(state.get("status")):
        if isinstance(cell, tuple) and len(cell) == 2 and isinstance(cell[0], int) and isinstance(status, str):
            slot, key = cell
            tenant = tenants.get(slot, 0)
            whose = f"tenant {_plain(tenant)}" if tenant else "nobody"
            yield "slot", (slot, key), status, f"{whose} v{_plain(versions.get(cell, 0))} {status}"


def _others(saved: Saved, state: Mapping[str, Value]) -> Iterator[tuple[str, str, str, str]]:
    """The variables, a record's fields apart, that the behavior changes."""
    first = saved.steps[0].state
    for name, value in state.items():
        if name in _STRIPPED and "status" in state:
            continue
        if isinstance(value, Function) and value.is_record:
            yield from (_variable(f"{name}.{field}", each) for field, each in value.items())
        elif value != first.get(name) or any(step.state.get(name) != value for step in saved.steps):
            yield _variable(name, value)


def _variable(name: str, value: Value) -> tuple[str, str, str, str]:
    return "variable", name, _STATELESS, _short(format_value(value)) or ""


def _end_those_gone(strips: Strips, now: Mapping[str, Value], at: int, before: Mapping[str, Value]) -> None:
    for group, variable in (("task", "tasks"), ("read", "reads")):
        there = {key for key, _ in _entries(now.get(variable))}
        for key, _ in _entries(before.get(variable)):
            if key not in there:
                strips.end((group, format_value(key) if group == "read" else key), at)  # type: ignore[arg-type]


def _rows_read(step: SavedStep) -> Iterator[Key]:
    """The rows of the reads that the step changes."""
    reads = {format_value(hit): (hit, read) for hit, read in _entries(step.state.get("reads"))}
    for named in {match[1] for place, _, _ in step.changes if (match := _READ.match(place))}:
        hit, read = reads.get(named, ((), ()))
        slots = _field(read, "slots")
        if isinstance(hit, tuple) and len(hit) == 3 and isinstance(slots, tuple):
            yield from (("slot", (slot, hit[2])) for slot in slots)  # type: ignore[misc]


def _failure(saved: Saved) -> Failure:
    last = saved.steps[-1]
    named = [name for name in variables_of(saved.violated) if name in last.state]
    changed = [each for each in last.changes if re.split(r"[.\[]", each[0])[0] in named] or last.changes
    moved = tuple((place, f"{_short(old)} -> {_short(new)}") for place, old, new in changed)
    values = tuple(line for name in named for line in _lines(name, last.state[name]))
    what = f"step {last.number}, {last.action}, leads to a state that must not be"
    if saved.back_to is not None:
        what = f"from step {saved.back_to} on the behavior repeats for ever, and what must come never does"
    return Failure(len(saved.steps) - 1, what, ((saved.violated, saved.says),), (*moved, *values))


def _lines(name: str, value: Value) -> Iterator[tuple[str, str]]:
    """A value on a line, or entry by entry where it is too long for one."""
    text = format_value(value)
    entries = value.items() if isinstance(value, Function) else []
    if len(text) <= _LONGEST // 2 or not entries:
        yield name, _short(text) or ""
        return
    for key, each in entries:
        at = f"{name}.{key}" if isinstance(value, Function) and value.is_record else f"{name}[{format_value(key)}]"
        yield from _lines(at, each)


def _short(text: str | None) -> str | None:
    if text is None:
        return "nothing"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _plain(value: Value) -> str:
    """A value for a label: without TLA+'s brackets and quotes."""
    text = re.sub(r"<<([^<>]*)>>", lambda match: " ".join(match[1].split(", ")), format_value(value))
    return re.sub(r'["{}]', "", text)
