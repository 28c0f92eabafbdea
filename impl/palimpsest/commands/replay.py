"""`palimpsest replay`: hold traces of the code against the rules of the specification."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_DESCRIPTION = """\
Takes each event of a trace (`palimpsest demo --trace-out FILE`) as an action of the specification: its guards
must hold, and the post-state that the code logged must be the one that the rules give. Exits with 1 when an
event is rejected and with 2 when a file is not a whole trace."""


def add_parser(subparsers: Any) -> None:
    """Add `replay` and its options."""
    parser = subparsers.add_parser(
        "replay",
        help="hold traces against the specification",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="an NDJSON trace")


def run(args: argparse.Namespace) -> int:
    """Replay the traces, show the table; 0 when all are accepted, 1 when not, 2 for a bad file."""
    from palimpsest_model_check.replay import machine, verdict

    verdicts = []
    for path in args.traces:
        try:
            config, events = machine.load(path)
        except (OSError, verdict.TraceError) as error:
            print(f"palimpsest replay: {error}", file=sys.stderr)
            return 2
        verdicts.append(machine.replay(str(path), config, events))
    console = Console()
    console.print(verdict_table(verdicts))
    for each in verdicts:
        if not each.ok:
            show_rejection(console, each)
    return 0 if all(each.ok for each in verdicts) else 1


def verdict_table(verdicts: list[Any]) -> Table:
    """One line per trace."""
    accepted = sum(each.ok for each in verdicts)
    table = Table(title=f"{accepted} of {len(verdicts)} traces accepted")
    for name in ("trace", "verdict", "events", "accepted", "kinds of action"):
        table.add_column(name, justify="left" if name in ("trace", "verdict") else "right")
    for each in verdicts:
        says = "accepted" if each.ok else f"rejected at event {each.seq}"
        table.add_row(each.trace, says, f"{each.events:,}", f"{each.accepted:,}", str(len(each.actions)))
    return table


def show_rejection(console: Console, verdict: Any) -> None:
    """The event, the guard or variable, what differs, what it breaks, and the specification's state."""
    rejection = verdict.rejection
    console.print(f"{verdict}", style="red", markup=False, highlight=False)
    state = Table(title="the specification's state before it")
    state.add_column("variable")
    state.add_column("value", overflow="fold")
    for name, value in rejection.state.items():
        state.add_row(name, str(value))
    console.print(state)
