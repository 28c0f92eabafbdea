"""The reachable graph of a model, as TLC dumps it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..dot import dump_dot
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from ..output import parse_state
from ..values import Value

State = dict[str, Value]


@dataclass(frozen=True)
class Edge:
    """A step of the specification: from a state to another one, by an action."""

    source: str
    action: str
    target: str


@dataclass(frozen=True)
class Graph:
    """States by TLC's fingerprint, the initial ones, and the edges between different states."""

    states: dict[str, State]
    initial: tuple[str, ...]
    edges: tuple[Edge, ...]

    def breadth_first(self) -> Iterator[Edge]:
        """Each edge once, those of a state after one that leads to it."""
        out: dict[str, list[Edge]] = {}
        for edge in self.edges:
            out.setdefault(edge.source, []).append(edge)
        todo, seen = deque(self.initial), set(self.initial)
        while todo:
            for edge in out.get(todo.popleft(), ()):
                yield edge
                if edge.target not in seen:
                    seen.add(edge.target)
                    todo.append(edge.target)


def dump(model: Model, manifest: Manifest, tools: Toolchain) -> Graph:
    """The graph of `model`. Raises `CheckError` where TLC does not come to its end."""
    dot = dump_dot(model, manifest, tools)
    edges = {Edge(*found) for found in dot.edges}
    steps = sorted((edge for edge in edges if edge.source != edge.target), key=lambda edge: (edge.source, edge.action))
    return Graph({name: parse_state(text) for name, text in dot.states.items()}, dot.initial, tuple(steps))
