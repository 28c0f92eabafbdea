"""A state of the specification as Python reads it, and the part of it that the code has too."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cached_property
from typing import Any

from ..values import Function

#: what a row is: <<generation, position, key>>
Identity = tuple[int, int, str]
Cell = tuple[int, str]
View = dict[str, Any]

#: what stands for memory that nobody has written, and for a copy that was not made
EMPTY = ("garbage", "nothing")
PENDING = ("pending", "fetching")


class State:
    """The variables of one state, opened; many states share their values, which nobody changes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def names(self) -> Set[str]:
        """The variables."""
        return self._values.keys()

    def of(self, name: str) -> dict[Any, Any]:
        """A variable that is a function; TLC prints one of 1..n as a sequence."""
        return _as_function(self[name])

    @cached_property
    def view(self) -> View:
        """What the code has of this state: all variables but the threads' places and the history that properties
        need. Memory that nobody has written is left out."""
        tasks = self.of("tasks")
        return {
            **{name: self.of(name) for name in ("tenant", "version", "status", "writer", "liveGen", "openTask")},
            **{name: self[name] for name in ("gens", "tids", "failed", "closed", "epoch", "charged")},
            "known": set(self["known"]),
            "begun": self["begun"]["n"],
            "steps": self.of("steps"),
            "reads": {hit: _read_view(read) for hit, read in self.of("reads").items() if read["st"] in PENDING},
            "tasks": {tid: _task_view(task) for tid, task in tasks.items()},
            "bytes": {tid: rows_in(task["bytes"]) for tid, task in tasks.items() if task["late"]},
            **{name: set(self[name]) for name in ("hi", "lo", "completed", "failures")},
            "woken": set(self["woken"]) & tasks.keys(),
            "last": set(self["eng"]["last"]),
            "tickets": sorted((ticket["size"], sorted(ticket["holders"])) for ticket in self["tickets"]),
            "holders": {page: set(holders) for page, holders in self.of("holders").items()},
            "page": {page: rows_in(rows) for page, rows in self.of("page").items()},
            "onWay": {page: [rows_in(rows) for rows in queue] for page, queue in self.of("onWay").items()},
            "pool": rows_in(self["pool"]),
        }


def rows_in(memory: Mapping[Cell, Identity]) -> dict[Cell, Identity]:
    """The rows that were written to a piece of memory, by their cells."""
    return {cell: row for cell, row in memory.items() if row[2] not in EMPTY}


def _read_view(read: Mapping[str, Any]) -> View:
    return {
        "fetching": read["st"] == "fetching",
        **{name: tuple(read[name]) for name in ("slots", "ver", "src")},
        "joins": set(read["joins"]),
        **{name: {at: row for at, row in enumerate(read[name]) if row[2] not in EMPTY} for name in ("kept", "staged")},
    }


def _task_view(task: Mapping[str, Any]) -> View:
    return {name: task[name] for name in ("state", "late", "req", "page")} | {
        name: set(task[name]) for name in ("rows", "lost")
    }


def differing(expected: View, found: View) -> list[str]:
    """Where two views differ, a line each."""
    return [line for name in expected if expected[name] != found[name]
            for line in _lines(name, expected[name], found[name])]  # fmt: skip


def _lines(name: str, expected: Any, found: Any) -> list[str]:
    if not (isinstance(expected, dict) and isinstance(found, dict)):
        return [f"{name} is {found}, and {expected} in the specification"]
    keys = [*expected, *(key for key in found if key not in expected)]
    return [
        line
        for key in keys
        if expected.get(key) != found.get(key)
        for line in _lines(f"{name}[{key}]", expected.get(key), found.get(key))
    ]


def opened(value: Any) -> Any:
    """A value of TLC's with dictionaries for functions and records, deep."""
    if isinstance(value, Function):
        return {opened(key): opened(each) for key, each in value.pairs}
    if isinstance(value, tuple):
        return tuple(map(opened, value))
    if isinstance(value, frozenset):
        members = list(map(opened, value))
        return members if any(isinstance(each, dict) for each in members) else frozenset(members)
    return value


def _as_function(value: Any) -> dict[Any, Any]:
    return dict(enumerate(value, 1)) if isinstance(value, tuple) else value
