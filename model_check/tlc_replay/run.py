"""Traces in TLC: one JVM for all that share their bounds, and a verdict for each."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import CheckError
from ..jvm import LARGE, Toolchain, find_toolchain
from ..output import Kind, Result
from ..places import spec_folder
from ..tlc import Run, run_tlc
from ..values import Function, Value, format_value, parse_value
from .literals import literal

HERE = Path(__file__).parent
#: the class that reads traces, and its source
CLASSES = HERE / "java"
LIMIT_S = 600.0

_FILE = """---- MODULE TraceFile ----
\\* Traces of the code, as the checker wrote them.
{definitions}
====
"""


class Replayable(Protocol):
    """A trace as TLC reads it: of the prefix cache, or of the host mirror."""

    @property
    def name(self) -> str:
        """What tells it from others."""

    @property
    def module(self) -> str:
        """The specification of a replay, beside this file."""

    @property
    def bounds(self) -> tuple[int, ...]:
        """What those of one run must share: the sizes that are constants of the specification."""

    @property
    def scope(self) -> str:
        """What of the code's trace it is."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its events."""

    def record(self) -> dict[str, Any]:
        """What stands in the file."""

    def definitions(self, traces: Sequence[Any], /) -> list[str]:
        """What TraceFile defines besides `traces`."""

    def configuration(self, traces: Sequence[Any], /) -> tuple[dict[str, object], dict[str, str]]:
        """Constants for all of `traces`, and definitions that stand for others."""


@dataclass(frozen=True)
class TlcVerdict:
    """What TLC says of one trace: accepted, or the event that it rejected and why."""

    trace: str
    #: the events that were accepted
    events: int
    #: what they are of: the whole trace, or a projection
    scope: str
    seq: int | None = None
    action: str | None = None
    why: tuple[str, ...] = ()
    state: Value | None = None

    @property
    def ok(self) -> bool:
        """Whether every event was accepted and there was one."""
        return self.seq is None and self.events > 0

    def variables(self) -> dict[str, str]:
        """The specification's state before the rejected event, by variable."""
        pairs = self.state.items() if isinstance(self.state, Function) else []
        return {str(name): format_value(value) for name, value in pairs}

    def __str__(self) -> str:
        if self.ok:
            return f"{self.trace}: accepted by TLC, {self.events:,} events ({self.scope})"
        reason = (
            "the action is not possible" if self.why == ("guard",) else f"what it left differs in {', '.join(self.why)}"
        )
        return f"{self.trace}: event {self.seq} ({self.action}) rejected by TLC: {reason}"


def replay_in_tlc(
    traces: Sequence[Replayable], tools: Toolchain | None = None, class_path: tuple[Path, ...] = (CLASSES,)
) -> list[TlcVerdict]:
    """A verdict for each of `traces`, which have distinct names, in their order."""
    tools = tools or find_toolchain()
    found: dict[str, TlcVerdict] = {}
    for group in _groups(traces):
        found.update(_replay(group, tools, class_path, explained=False))
    for group in _groups([trace for trace in traces if trace.name not in found]):
        found.update(_replay(group, tools, class_path, explained=True))
    return [found[trace.name] for trace in traces]


def _groups(traces: Sequence[Replayable]) -> Iterator[list[Replayable]]:
    """The traces that one JVM can take."""
    groups: dict[tuple[str, tuple[int, ...]], list[Replayable]] = {}
    for trace in traces:
        groups.setdefault((trace.module, trace.bounds), []).append(trace)
    yield from groups.values()


def _replay(
    traces: Sequence[Replayable], tools: Toolchain, class_path: tuple[Path, ...], explained: bool
) -> dict[str, TlcVerdict]:
    result = _run(traces, tools, class_path, explained)
    if class_path and result.kind in (Kind.ASSUMPTION, Kind.CRASH) and not result.said:
        result = _run(traces, tools, (), explained)  # the class cannot be loaded here: literals take longer
    found = _verdicts(traces, result)
    missing = [trace.name for trace in traces if trace.name not in found]
    if result.kind is not Kind.OK or (explained and missing):
        raise CheckError(f"TLC came to no verdict on {missing}: {result.explanation or result.verdict}")
    return found


def _run(traces: Sequence[Replayable], tools: Toolchain, class_path: tuple[Path, ...], explained: bool) -> Result:
    with tempfile.TemporaryDirectory(prefix="palimpsest-replay-") as folder:
        return run_tlc(_prepare(traces, Path(folder), class_path, explained), tools)


def _prepare(traces: Sequence[Replayable], room: Path, class_path: tuple[Path, ...], explained: bool) -> Run:
    first = traces[0]
    for module in (*spec_folder().glob("*.tla"), HERE / f"{first.module}.tla"):
        shutil.copy(module, room)
    definitions = [_traces(traces, room, class_path), *first.definitions(traces)]
    (room / "TraceFile.tla").write_text(_FILE.format(definitions="\n".join(definitions)), encoding="utf-8")
    config = room / f"{first.module}.cfg"
    config.write_text(_configuration(traces, explained), encoding="utf-8")
    return Run(
        room / f"{first.module}.tla",
        config,
        workers=2,
        heap=LARGE,
        deadlock=False,
        limit_s=LIMIT_S,
        class_path=class_path,
    )


def _traces(traces: Sequence[Replayable], room: Path, class_path: tuple[Path, ...]) -> str:
    """The definition of `Traces`: read from a file by the class, literals without it."""
    records = [trace.record() for trace in traces]
    if not class_path:
        return "Traces == " + literal(records)
    file = room / "traces.ndjson"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return f"ReadTraces(file) == <<>>\nTraces == ReadTraces({literal(str(file))})"


def _configuration(traces: Sequence[Replayable], explained: bool) -> str:
    constants, stand_ins = traces[0].configuration(traces)
    lines = ["SPECIFICATION TraceSpec", "CONSTANTS", *(f"  {name} <- {other}" for name, other in stand_ins.items())]
    values = {**constants, "Explained": str(explained).upper()}
    return "\n".join([*lines, *(f"  {name} = {value}" for name, value in values.items()), ""])


def _verdicts(traces: Sequence[Replayable], result: Result) -> dict[str, TlcVerdict]:
    by_name = {trace.name: trace for trace in traces}
    found: dict[str, TlcVerdict] = {}
    for line in result.said:
        said = parse_value(line)
        assert isinstance(said, tuple)
        trace = by_name[str(said[1])]
        found[trace.name] = _verdict(trace, said)
    return found


def _verdict(trace: Replayable, said: tuple[Value, ...]) -> TlcVerdict:
    if said[0] == "ACCEPT":
        assert said[2] == len(trace.events)
        return TlcVerdict(trace.name, len(trace.events), trace.scope)
    _, _, at, seq, action, why, state = said
    assert isinstance(at, int)
    assert isinstance(seq, int)
    assert isinstance(why, frozenset)
    reasons = tuple(sorted(map(str, why))) or ("nothing by itself, but not all together",)
    return TlcVerdict(trace.name, at - 1, trace.scope, seq, str(action), reasons, state)
