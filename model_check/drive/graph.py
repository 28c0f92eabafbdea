"""What the specification allows, as TLC tells it: the whole graph of a small model, or one behavior."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Protocol

from ..counterexample import snake_case
from ..dot import dump_dot
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from ..values import parse_value
from .spec_state import State, opened
from .who import thread_of

_VARIABLE = re.compile(r"^/\\ (\w+) = ", re.MULTILINE)


class Edge(NamedTuple):
    """A step of the specification: who does which action in which state, and the state that it leads to."""

    source: str
    action: str
    thread: str
    target: str

    def __str__(self) -> str:
        return f"{self.action} ({self.thread})"


class Turn(NamedTuple):
    """What a thread did somewhere, whatever came of it."""

    state: str
    action: str
    thread: str


@dataclass
class Graph:
    """States by name, those that a behavior begins with, and the edges out of each."""

    name: str
    model: Model
    states: dict[str, State]
    initial: tuple[str, ...]
    #: whether each edge of the specification out of these states is there
    whole: bool
    out: dict[str, list[Edge]] = field(default_factory=dict)
    #: where it is not whole: what each edge is there of
    told: set[Turn] = field(default_factory=set)

    def tells(self, turn: Turn) -> bool:
        """Whether all is there that the specification lets a thread do in a state by an action."""
        return self.whole or turn in self.told

    @property
    def edges(self) -> list[Edge]:
        """All edges."""
        return [edge for edges in self.out.values() for edge in edges]

    def connect(self, edges: Iterable[tuple[str, str, str]]) -> Graph:
        """Add edges (source, action, target), with the thread that must have done each; those to itself are left
        out, since they stand for a rest."""
        out: dict[str, set[Edge]] = defaultdict(set)
        for source, action, target in edges:
            if source != target:
                name = snake_case(action)
                thread = thread_of(name, self.states[source], self.states[target])
                out[source].add(Edge(source, name, thread, target))
        self.out = {source: sorted(found) for source, found in out.items()}
        return self


class Plan(Protocol):
    """Says which edge the code is asked for next, and is told what it does."""

    @property
    def graph(self) -> Graph:
        """What the specification allows."""

    @property
    def path(self) -> Iterable[Edge]:
        """What is planned from here on."""

    def next(self, state: str) -> Edge | None:
        """The edge to take now; None where no edge is left that can be asked for."""

    def take(self, edge: Edge) -> None:
        """The code has taken an edge."""

    def refuse(self, edge: Edge, why: str) -> None:
        """The code does not take an edge here."""


def dump(model: Model, manifest: Manifest, tools: Toolchain) -> Graph:
    """The graph of `model`, which must be small; its properties are not checked here. Raises `CheckError` where TLC
    does not come to its end."""
    bare = replace(model, specification="Spec", invariants=(), properties=(), deadlock=False)
    dot = dump_dot(bare, manifest, tools)
    states = {name: State(read_state(text)) for name, text in dot.states.items()}
    return Graph(bare.name, bare, states, dot.initial, whole=True).connect(dot.edges)


@cache
def _value(text: str) -> Any:
    return opened(parse_value(text))


def read_state(label: str) -> Mapping[str, Any]:
    """A state's variables: most values stand in many states, and are read once."""
    marks = list(_VARIABLE.finditer(label))
    ends = [mark.start() for mark in marks[1:]] + [len(label)]
    return {mark[1]: _value(label[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)}
