"""A counterexample as a table of steps: who did what, and what changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from palimpsest.actions import ACTIONS

from .output import Kind, Result, Step
from .values import Function, Value, format_value, to_json
from .words import in_words

#: as in the registry of actions; a changed variable may be indexed by them
_THREADS = ("engine", "builder", "prefetch", "committer", "device")
_LONGEST = 160


@dataclass(frozen=True)
class Change:
    """What a step did to one place of one variable; `old` is None where it was not there before."""

    place: str
    old: Value | None
    new: Value | None

    def __str__(self) -> str:
        match self.old, self.new:
            case frozenset() as old, frozenset() as new if old and new and not old.isdisjoint(new):
                parts = [("gains", new - old), ("loses", old - new)]
                return f"{self.place} " + ", ".join(f"{verb} {_short(some)}" for verb, some in parts if some)
            case tuple() as old, tuple() as new if old and new[: len(old)] == old:
                return f"{self.place} is appended {_short(new[len(old) :])}"
            case tuple() as old, tuple() as new if new and old[-len(new) :] == new:
                return f"{self.place} loses its first {_short(old[: -len(new)])}"
        return f"{self.place}: {_short(self.old)} -> {_short(self.new)}"


@dataclass(frozen=True)
class Row:
    """One step of a counterexample."""

    number: int
    action: str
    thread: str
    changes: tuple[Change, ...]
    state: Mapping[str, Value]


@dataclass(frozen=True)
class Counterexample:
    """The steps to a violation, and the property that they violate."""

    model: str
    violated: str
    says: str
    kind: Kind
    rows: tuple[Row, ...]
    back_to: int | None

    @classmethod
    def of(
        cls, model: str, result: Result, purpose: str = "", threads: Mapping[str, str] | None = None
    ) -> Counterexample:
        """What `result` shows of `model`."""
        rows = tuple(_rows(result.steps, threads or {}))
        says = in_words(result.verdict, purpose)
        return cls(model, result.verdict, says, result.kind, rows, result.back_to)

    def to_json(self) -> dict[str, Any]:
        """Everything, each state whole, for `json.dump`."""
        return {
            "model": self.model,
            "violated": self.violated,
            "says": self.says,
            "kind": self.kind.value,
            "back_to": self.back_to,
            "steps": [_row_json(row) for row in self.rows],
        }

    def save(self, folder: Path) -> Path:
        """Write it below `folder`, under the model's name; gives the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.model}.json"
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return path


def _rows(steps: tuple[Step, ...], threads: Mapping[str, str]) -> Iterator[Row]:
    before: Mapping[str, Value] = {}
    for step in steps:
        changes = tuple(_step_changes(before, step.values))
        action = f"{step.action}({step.arguments})" if step.arguments else step.action
        yield Row(step.number, action, _thread(step, changes, threads), changes, step.values)
        before = step.values


def _step_changes(before: Mapping[str, Value], after: Mapping[str, Value]) -> Iterator[Change]:
    if not before:
        yield from (Change(name, None, value) for name, value in after.items())
        return
    for name, value in after.items():
        yield from changes_of(name, before.get(name), value)


def changes_of(place: str, old: Value | None, new: Value | None) -> Iterator[Change]:
    """The smallest places in which two values differ: entries of functions, ends of sequences, members of sets."""
    if old == new and type(old) is type(new):
        return
    match old, new:
        case Function(), Function():
            yield from _function_changes(place, old, new)
        case tuple(), tuple() if old and new:
            yield from _sequence_changes(place, old, new)
        case _:
            yield Change(place, old, new)


def _function_changes(place: str, old: Function, new: Function) -> Iterator[Change]:
    was, now = old.as_dict(), new.as_dict()
    if not was.keys() & now.keys():
        yield Change(place, old, new)
        return
    for key in [*was, *(key for key in now if key not in was)]:
        at = f"{place}.{key}" if new.is_record and old.is_record else f"{place}[{format_value(key)}]"
        yield from changes_of(at, was.get(key), now.get(key))


def _sequence_changes(place: str, old: tuple[Value, ...], new: tuple[Value, ...]) -> Iterator[Change]:
    if len(old) != len(new):
        yield Change(place, old, new)
        return
    for index, (was, now) in enumerate(zip(old, new, strict=True), start=1):
        yield from changes_of(f"{place}[{index}]", was, now)


def _thread(step: Step, changes: tuple[Change, ...], threads: Mapping[str, str]) -> str:
    """Who did the step: the manifest says it, else the registry; of several threads, the one whose own
    variables changed."""
    if step.action in threads:
        return threads[step.action]
    entry = ACTIONS.get(snake_case(step.action))
    possible = entry.threads if entry else ()
    said = {thread for thread in possible or _THREADS if _mentions(thread, step, changes)}
    return said.pop() if len(said) == 1 else "/".join(possible)


def _mentions(thread: str, step: Step, changes: tuple[Change, ...]) -> bool:
    word = re.compile(rf"\b{thread}\b")
    return bool(word.search(step.arguments)) or any(word.search(change.place) for change in changes)


def snake_case(name: str) -> str:
    """The Python name of an action of the specification."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "step": row.number,
        "action": row.action,
        "thread": row.thread,
        "changes": [_change_json(change) for change in row.changes],
        "state": {name: to_json(value) for name, value in row.state.items()},
    }


def _change_json(change: Change) -> dict[str, Any]:
    old, new = (None if value is None else format_value(value) for value in (change.old, change.new))
    return {"place": change.place, "old": old, "new": new}


def _short(value: Value | None) -> str:
    text = "nothing" if value is None else format_value(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def counterexample_table(example: Counterexample) -> Table:
    """The steps; of the first state each variable, of the later ones what changed."""
    table = Table(title=f"{escape(example.model)} violates {escape(example.violated)}", show_lines=True)
    table.add_column("step", justify="right")
    for name in ("action", "thread", "what changed"):
        table.add_column(name)
    for row in example.rows:
        table.add_row(str(row.number), escape(row.action), row.thread, escape("\n".join(_lines(row))))
    if example.back_to is not None:
        table.add_row("", "", "", _ending(example))
    return table


def _lines(row: Row) -> list[str]:
    if row.action == "Init":
        return [f"{change.place} = {_short(change.new)}" for change in row.changes]
    return [str(change) for change in row.changes] or ["nothing"]


def _ending(example: Counterexample) -> str:
    if example.rows and example.back_to == example.rows[-1].number:
        return "and stays there for ever"
    return f"and goes on as from step {example.back_to}, for ever"


def print_counterexample(example: Counterexample, console: Console | None = None) -> None:
    """The table, with the violated property in words below it."""
    console = console or Console()
    console.print(counterexample_table(example))
    console.print(f"{example.violated}: {example.says}", markup=False, highlight=False)
