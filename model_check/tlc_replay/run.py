"""Traces in TLC: one JVM for all that share their bounds, and a verdict for each."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckError
from ..jvm import LARGE, Toolchain, find_toolchain
from ..output import Kind, Result
from ..places import spec_folder
from ..tlc import Run, run_tlc
from ..values import Function, Value, format_value, parse_value
from .literals import literal
from .translate import TlcTrace

HERE = Path(__file__).parent
#: the class that reads traces, and its source
CLASSES = HERE / "java"
LIMIT_S = 600.0

_FILE = """---- MODULE TraceFile ----
\\* Traces of the code, as the checker wrote them.
{definitions}
====
"""
_SWITCHES = ("CanLag", "CanStall", "CanAbort", "CanSkip", "CanDrop", "CanFail", "CanReset", "CanShutdown")


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
    traces: Sequence[TlcTrace], tools: Toolchain | None = None, class_path: tuple[Path, ...] = (CLASSES,)
) -> list[TlcVerdict]:
    """A verdict for each of `traces`, which have distinct names, in their order."""
    tools = tools or find_toolchain()
    found: dict[str, TlcVerdict] = {}
    for group in _groups(traces):
        found.update(_replay(group, tools, class_path, explained=False))
    for group in _groups([trace for trace in traces if trace.name not in found]):
        found.update(_replay(group, tools, class_path, explained=True))
    return [found[trace.name] for trace in traces]


def _groups(traces: Sequence[TlcTrace]) -> Iterator[list[TlcTrace]]:
    """The traces that one JVM can take: what they share are the sizes that are constants of the specification."""
    groups: dict[tuple[int, ...], list[TlcTrace]] = {}
    for trace in traces:
        key = (trace.block_size, trace.num_blocks, trace.pages, trace.budget)
        groups.setdefault(key, []).append(trace)
    yield from groups.values()


def _replay(
    traces: Sequence[TlcTrace], tools: Toolchain, class_path: tuple[Path, ...], explained: bool
) -> dict[str, TlcVerdict]:
    result = _run(traces, tools, class_path, explained)
    if class_path and result.kind in (Kind.ASSUMPTION, Kind.CRASH) and not result.said:
        result = _run(traces, tools, (), explained)  # the class cannot be loaded here: literals take longer
    found = _verdicts(traces, result)
    missing = [trace.name for trace in traces if trace.name not in found]
    if result.kind is not Kind.OK or (explained and missing):
        raise CheckError(f"TLC came to no verdict on {missing}: {result.explanation or result.verdict}")
    return found


def _run(traces: Sequence[TlcTrace], tools: Toolchain, class_path: tuple[Path, ...], explained: bool) -> Result:
    with tempfile.TemporaryDirectory(prefix="palimpsest-replay-") as folder:
        return run_tlc(_prepare(traces, Path(folder), class_path, explained), tools)


def _prepare(traces: Sequence[TlcTrace], room: Path, class_path: tuple[Path, ...], explained: bool) -> Run:
    for module in (*spec_folder().glob("*.tla"), HERE / "TraceReplay.tla"):
        shutil.copy(module, room)
    lines = [json.dumps(trace.record()) for trace in traces]
    if class_path:
        file = room / "traces.ndjson"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        definitions = f"ReadTraces(file) == <<>>\nTraces == ReadTraces({literal(str(file))})"
    else:
        definitions = "Traces == " + literal([trace.record() for trace in traces])
    definitions += f"\nBlockSize == {traces[0].block_size}"
    (room / "TraceFile.tla").write_text(_FILE.format(definitions=definitions), encoding="utf-8")
    config = room / "TraceReplay.cfg"
    config.write_text(_configuration(traces, explained), encoding="utf-8")
    return Run(
        room / "TraceReplay.tla", config, workers=2, heap=LARGE, deadlock=False, limit_s=LIMIT_S, class_path=class_path
    )


def _configuration(traces: Sequence[TlcTrace], explained: bool) -> str:
    first = traces[0]
    requests = sorted(set().union(*(trace.requests for trace in traces)))
    immediate = sorted(set().union(*(trace.immediate for trace in traces)))
    deferred = sorted(set().union(*(trace.deferred for trace in traces)))
    constants = {
        "Slots": _set(range(first.block_size * first.num_blocks)),
        "Requests": _set(map(literal, requests)),
        "Immediate": _set(map(literal, immediate)),
        "Deferred": _set(map(literal, deferred)),
        "Hidden": _set([literal("__hidden_states__")]),
        "Pages": _set(range(1, first.pages + 1)),
        "Budget": first.budget,
        "Readers": '{"prefetch", "builder"}',
        "Explained": str(explained).upper(),
        **dict.fromkeys(_SWITCHES, "TRUE"),
    }
    lines = [
        "SPECIFICATION TraceSpec",
        "CONSTANTS",
        "  Blocks <- TraceBlocks",
        "  Schedules <- NoSchedule",
        "  Overtaken <- OvertakenHere",
        "  CanTake <- CanTakeHere",
        "  Cost <- CostHere",
    ]
    return "\n".join([*lines, *(f"  {name} = {value}" for name, value in constants.items()), ""])


def _set(items: object) -> str:
    return "{" + ", ".join(map(str, items)) + "}"  # type: ignore[call-overload]


def _verdicts(traces: Sequence[TlcTrace], result: Result) -> dict[str, TlcVerdict]:
    by_name = {trace.name: trace for trace in traces}
    found: dict[str, TlcVerdict] = {}
    for line in result.said:
        said = parse_value(line)
        assert isinstance(said, tuple)
        trace = by_name[str(said[1])]
        found[trace.name] = _verdict(trace, said)
    return found


def _verdict(trace: TlcTrace, said: tuple[Value, ...]) -> TlcVerdict:
    if said[0] == "ACCEPT":
        assert said[2] == len(trace.events)
        return TlcVerdict(trace.name, len(trace.events), _scope(trace))
    _, _, at, seq, action, why, state = said
    assert isinstance(at, int)
    assert isinstance(seq, int)
    assert isinstance(why, frozenset)
    reasons = tuple(sorted(map(str, why))) or ("nothing by itself, but not all together",)
    return TlcVerdict(trace.name, at - 1, _scope(trace), seq, str(action), reasons, state)


def _scope(trace: TlcTrace) -> str:
    if trace.whole:
        return f"the whole trace of {trace.of:,}"
    if len(trace.events) < trace.touching:
        return f"the first of {trace.touching:,} that touch them, of {trace.of:,}"
    return f"all that touch them, of {trace.of:,}"
