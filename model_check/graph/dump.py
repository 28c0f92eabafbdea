"""The reachable graph of a model, as TLC dumps it."""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckError
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from ..output import Kind, parse_state
from ..tlc import Run, run_tlc
from ..values import Value
from ..workspace import prepare

State = dict[str, Value]

_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(.*)\]', re.MULTILINE)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"', re.MULTILINE)
_ESCAPED = re.compile(r"\\(.)")


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
    with tempfile.TemporaryDirectory(prefix="palimpsest-graph-") as folder:
        module, config = prepare(model, manifest, Path(folder))
        file = Path(folder) / "graph.dot"
        options = ("-dump", "dot,actionlabels", str(file))
        result = run_tlc(Run(module, config, 1, model.heap, model.deadlock, model.limit_s, options), tools)
        if result.kind is not Kind.OK:
            raise CheckError(f"model {model.name}: TLC has no graph of it: {result.verdict}; {result.explanation}")
        graph = read(file.read_text(encoding="utf-8"))
    if len(graph.states) != result.progress.distinct:
        raise CheckError(
            f"model {model.name}: {len(graph.states):,} states in the dump of {result.progress.distinct:,}"
        )
    return graph


def read(text: str) -> Graph:
    """The graph that TLC's dot file has."""
    states, initial = {}, []
    for number, label, style in _NODE.findall(text):
        states[number] = parse_state(_ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], label))
        if "filled" in style:
            initial.append(number)
    edges = {Edge(*found) for found in ((source, action, to) for source, to, action in _EDGE.findall(text))}
    steps = sorted((edge for edge in edges if edge.source != edge.target), key=lambda edge: (edge.source, edge.action))
    return Graph(states, tuple(initial), tuple(steps))
