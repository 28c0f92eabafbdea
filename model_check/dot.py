"""The reachable graph of a model as TLC dumps it: the text of each state, and the actions between them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .errors import CheckError
from .jvm import Toolchain
from .manifest import Manifest, Model
from .output import Kind
from .tlc import Run, run_tlc
from .workspace import prepare

_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(.*)\]', re.MULTILINE)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"', re.MULTILINE)
_ESCAPED = re.compile(r"\\(.)")


class Dot(NamedTuple):
    """States by TLC's fingerprint, the initial ones, and (source, action, target)."""

    states: dict[str, str]
    initial: tuple[str, ...]
    edges: list[tuple[str, str, str]]


def dump_dot(
    model: Model,
    manifest: Manifest,
    tools: Toolchain,
    furnish: Callable[[Model, Manifest, Path], tuple[Path, Path]] = prepare,
) -> Dot:
    """The graph of `model`, of which `furnish` makes what TLC reads. Raises `CheckError` where TLC does not come to its
    end, or left states out."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-graph-") as folder:
        module, config = furnish(model, manifest, Path(folder))
        file = Path(folder) / "graph.dot"
        options = ("-dump", "dot,actionlabels", str(file))
        result = run_tlc(Run(module, config, 1, model.heap, model.deadlock, model.limit_s, options), tools)
        if result.kind is not Kind.OK:
            raise CheckError(f"model {model.name}: TLC has no graph of it: {result.verdict}; {result.explanation}")
        dot = _read(file.read_text(encoding="utf-8"))
    if len(dot.states) != result.progress.distinct:
        raise CheckError(f"model {model.name}: {len(dot.states):,} states in the dump of {result.progress.distinct:,}")
    return dot


def _read(text: str) -> Dot:
    nodes = _NODE.findall(text)
    states = {
        name: _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], label) for name, label, _ in nodes
    }
    initial = tuple(name for name, _, style in nodes if "filled" in style)
    return Dot(states, initial, [(source, action, target) for source, target, action in _EDGE.findall(text)])
