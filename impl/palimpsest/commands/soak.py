"""`palimpsest soak`: random programs with faults for as long as one likes, and nothing may be left of them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from palimpsest.commands._common import command_parser, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from palimpsest_model_check.programs.soak import Soaked

_DESCRIPTION = """\
Runs random programs of a runner on the real threads, each on a cache of its own, and one cache that lives all the
time: hits, chunks, preemptions, blocks reused under pressure, resets, calls with bad input, copies that fail, lost
writes. Every delivered row is compared with a plain model, every event is replayed, and each cache ends with nothing
held. At the end no thread may be left, and the memory in use may not have grown.

Exits with 1 on anything else."""


def add_parser(subparsers: Any) -> None:
    """Add `soak` and its options."""
    parser = command_parser(subparsers, "soak", "run random programs with faults for a while", _DESCRIPTION)
    parser.add_argument("--seconds", type=_seconds, default=600.0, metavar="S", help="how long (600)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the programs (0)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Soak, show the table; 0 when all is as it must be."""

    console = make_console()
    try:
        soaked = _soak(args, console)
    except KeyboardInterrupt:
        print("palimpsest soak: interrupted", file=sys.stderr)
        return 130
    _show(soaked, console)
    return 1 if soaked.wrong else 0


def _soak(args: argparse.Namespace, console: Console) -> Soaked:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from palimpsest_model_check.programs.soak import soak

    columns = TextColumn("soak"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[says]}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("soak", total=args.seconds, says="")

        def progressed(soaked: Soaked) -> None:
            says = f"{soaked.lives} caches, {soaked.rows:,} rows, {soaked.faults:,} faults"
            bars.update(task, completed=soaked.seconds, says=f"{says}, {soaked.memory[-1] / 2**20:.0f} MiB")

        return soak(args.seconds, seed=args.seed, progress=progressed)


def _show(soaked: Soaked, console: Console) -> None:
    from rich.table import Table

    table = Table(title=f"{soaked.lives} caches in {soaked.seconds:.0f} s")
    table.add_column("what")
    table.add_column("times", justify="right")
    rows = {
        "rows compared": soaked.rows,
        "events replayed": soaked.events,
        "faults and bad calls": soaked.faults,
        **dict(sorted(soaked.done.items())),
    }
    for what, times in rows.items():
        table.add_row(what, f"{times:,}")
    console.print(table)
    memory = f"memory in use: {max(soaked.memory, default=0) / 2**20:.0f} MiB at most"
    console.print(f"{memory}, grown by {soaked.growth_bytes / 2**20:.1f} MiB", markup=False, highlight=False)
    for line in soaked.wrong:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if not soaked.wrong:
        console.print("nothing is held, no thread is left", style="green")
