"""`palimpsest replay`: hold traces of the code against the specification, in process and in TLC."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from palimpsest.commands._common import command_parser, make_console
from palimpsest.trace import Event

_DESCRIPTION = """\
Takes each event of a trace (`palimpsest demo --trace-out FILE`) as an action of the specification: its guards
must hold, and the post-state that the code logged must be the one that the rules give. The in-process checker
takes the whole trace; what it accepts, TLC takes again on the specification itself: a small trace whole, of a
large one the events that touch its busiest blocks; of a host mirror in each part one layer and one request's hot rows.
In process only: what a flight recorder wrote, which begins at a state in its header, and what one of several processes
wrote that share a mirror. Exits with 1 when an event is rejected and with 2 when a file can not be replayed."""

Trace = tuple[str, dict[str, Any], Sequence[Event]]


def add_parser(subparsers: Any) -> None:
    """Add `replay` and its options."""
    parser = command_parser(subparsers, "replay", "hold traces against the specification", _DESCRIPTION)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="an NDJSON trace")
    parser.add_argument("--no-tlc", dest="tlc", action="store_false", help="replay in process only")


def run(args: argparse.Namespace) -> int:
    """Replay the traces, show the verdicts; 0 when all are accepted, 1 when not, 2 for a bad file."""
    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.replay import machine, verdict

    try:
        traces: list[Trace] = [(str(path), *machine.load(path)) for path in args.traces]
        return 0 if judge(traces, make_console(), tlc=args.tlc) else 1
    except (OSError, verdict.TraceError, CheckError) as error:
        print(f"palimpsest replay: {error}", file=sys.stderr)
        return 2


def judge(traces: Sequence[Trace], console: Console, *, tlc: bool) -> bool:
    """Show both verdicts on each trace; whether all are accepted. Raises `CheckError` where TLC cannot run."""
    from palimpsest_model_check.replay import machine
    from palimpsest_model_check.tlc_replay import replayable

    verdicts = [machine.replay(*trace) for trace in traces]
    table = Table(title=f"{sum(each.ok for each in verdicts)} of {len(verdicts)} traces accepted in process")
    _columns(table, "trace", "verdict", "events", "kinds of action")
    for each in verdicts:
        says = "accepted" if each.ok else f"rejected at event {each.seq}"
        table.add_row(each.trace, says, f"{each.accepted:,} of {each.events:,}", str(len(each.actions)))
    console.print(table)
    for each in verdicts:
        if not each.ok:
            show_rejection(console, each)
    accepted = [trace for trace, each in zip(traces, verdicts, strict=True) if each.ok]
    whole = [trace for trace in accepted if replayable(*trace[1:])]
    if tlc and len(whole) < len(accepted):
        console.print(
            f"{len(accepted) - len(whole)} traces of a flight recorder or of one rank of several: in process only"
        )
    in_tlc = _judge_in_tlc(whole, console) if tlc and whole else True
    return len(accepted) == len(traces) and in_tlc


def _judge_in_tlc(traces: Sequence[Trace], console: Console) -> bool:
    from palimpsest_model_check.tlc_replay import replay_in_tlc, windows

    parts = [part for trace in traces for part in windows(*trace)]
    with console.status(f"TLC takes {sum(len(part.events) for part in parts):,} events"):
        verdicts = replay_in_tlc(parts)
    table = Table(title=f"{sum(each.ok for each in verdicts)} of {len(verdicts)} parts accepted by TLC")
    _columns(table, "trace", "verdict", "events", "which are")
    for each in verdicts:
        says = "accepted" if each.ok else f"rejected at event {each.seq}"
        table.add_row(each.trace, says, f"{each.events:,}", each.scope)
    console.print(table)
    for each in verdicts:
        if not each.ok:
            console.print(str(each), style="red", markup=False, highlight=False)
            _show_state(console, each.variables())
    return all(each.ok for each in verdicts)


def _columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right" if name in ("events", "kinds of action") else "left")


def show_rejection(console: Console, verdict: Any) -> None:
    """The event, the guard or variable, what differs, what it breaks, and the specification's state."""
    console.print(f"{verdict}", style="red", markup=False, highlight=False)
    _show_state(console, verdict.rejection.state)


def _show_state(console: Console, variables: dict[str, Any]) -> None:
    state = Table(title="the specification's state before it")
    state.add_column("variable")
    state.add_column("value", overflow="fold")
    for name, value in variables.items():
        state.add_row(name, str(value))
    console.print(state)
