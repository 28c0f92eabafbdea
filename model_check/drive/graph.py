"""What the specification allows, as TLC tells it: the whole graph of a small model, or one behavior."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..counterexample import snake_case
from ..errors import CheckError
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from ..output import Kind
from ..tlc import Run, run_tlc
from ..values import parse_value
from ..workspace import prepare
from .spec_state import State, opened
from .who import thread_of

_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(.*)\]', re.MULTILINE)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"', re.MULTILINE)
_VARIABLE = re.compile(r"^/\\ (\w+) = ", re.MULTILINE)
_ESCAPED = re.compile(r"\\(.)")


class Edge(NamedTuple):
    """A step of the specification: who does which action in which state, and the state that it leads to."""

    source: str
    action: str
    thread: str
    target: str

    def __str__(self) -> str:
        return f"{self.action} ({self.thread})"


@dataclass
class Graph:
    """States by name, those that a behavior begins with, and the edges out of each."""

    name: str
    model: Model
    states: dict[str, State]
    initial: tuple[str, ...]
    #: whether each edge of the specification out of these states is there; else it is one behavior
    whole: bool
    out: dict[str, list[Edge]] = field(default_factory=dict)

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


def dump(model: Model, manifest: Manifest, tools: Toolchain) -> Graph:
    """The graph of `model`, which must be small; its properties are not checked here. Raises `CheckError` where TLC
    does not come to its end."""
    model = replace(model, specification="Spec", invariants=(), properties=(), deadlock=False)
    with tempfile.TemporaryDirectory(prefix="palimpsest-graph-") as folder:
        module, config = prepare(model, manifest, Path(folder))
        file = Path(folder) / "graph.dot"
        options = ("-dump", "dot,actionlabels", str(file))
        result = run_tlc(Run(module, config, 1, model.heap, model.deadlock, model.limit_s, options), tools)
        if result.kind is not Kind.OK:
            raise CheckError(f"model {model.name}: TLC has no graph of it: {result.verdict}; {result.explanation}")
        graph = read_dot(model, file.read_text(encoding="utf-8"))
    if len(graph.states) != result.progress.distinct:
        raise CheckError(f"model {model.name}: {len(graph.states)} states in the dump of {result.progress.distinct}")
    return graph


def read_dot(model: Model, text: str) -> Graph:
    """The graph that TLC's dot file has."""
    states: dict[str, State] = {}
    initial: list[str] = []
    for name, label, style in _NODE.findall(text):
        states[name] = State(_read(_ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], label)))
        if "filled" in style:
            initial.append(name)
    graph = Graph(model.name, model, states, tuple(initial), whole=True)
    return graph.connect((source, action, target) for source, target, action in _EDGE.findall(text))


@cache
def _value(text: str) -> Any:
    return opened(parse_value(text))


def _read(label: str) -> Mapping[str, Any]:
    """A state's variables: most values stand in many states, and are read once."""
    marks = list(_VARIABLE.finditer(label))
    ends = [mark.start() for mark in marks[1:]] + [len(label)]
    return {mark[1]: _value(label[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)}
