"""`palimpsest drive`: what the specification reaches, taken by the package's own threads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.commands._common import command_parser, count, make_console, positive, terminable

if TYPE_CHECKING:
    from rich.console import Console

    from palimpsest_model_check.manifest import Model

_DESCRIPTION = """\
Lets TLC tell the whole graph of a model, and asks the package's own code for each of its edges: plans are the model's,
threads run one at a time as the edge says, copies land, fail or stay away as it says. After each action the whole state
of the cache (slots, requests, reads, tasks, queues, records, bytes, pages, rows) is compared with the state that the
edge leads to.

What the code never does is counted, with what it does instead. Exits with 1 when a state differs, when the
code does what the specification does not allow or never does one of a thread's actions, and with 2 when nothing can be
driven.

With --simulate TLC tells random behaviors instead, also of models that no machine goes through. Where the code takes
another step than a behavior, TLC is asked whether the specification allows it, and simulates on from there."""


def add_parser(subparsers: Any) -> None:
    """Add `drive` and its options."""
    parser = command_parser(subparsers, "drive", "take the specification's steps with the real threads", _DESCRIPTION)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="small models of the manifest (any with --simulate); else a choice"
    )
    parser.add_argument("--runs", type=positive, metavar="N", help="at most N runs of each model")
    parser.add_argument(
        "--simulate", type=positive, metavar="N", help="N random behaviors of each model instead of its graph"
    )
    parser.add_argument("--depth", type=positive, default=200, metavar="N", help="steps of a random behavior (200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random behaviors (0)")
    parser.add_argument(
        "--rounds",
        type=count,
        default=4,
        metavar="N",
        help="how often TLC simulates on from where the code left a behavior (4)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("counterexamples"),
        metavar="DIR",
        help="folder of the behaviors in which a state differs (counterexamples)",
    )


def run(args: argparse.Namespace) -> int:
    """Drive the models, show the tables; 0 when no state differs, 1 when one does, 2 when nothing can be driven."""

    from palimpsest_model_check.drive.models import drivable, simulable
    from palimpsest_model_check.errors import CheckError

    console = make_console()
    try:
        with terminable():
            if args.simulate:
                return _simulate(args, simulable(args.models), console)
            return _drive(args, drivable(args.models), console)
    except CheckError as error:
        print(f"palimpsest drive: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest drive: interrupted", file=sys.stderr)
        return 130


def _drive(args: argparse.Namespace, models: list[Model], console: Console) -> int:
    from palimpsest_model_check.drive import report
    from palimpsest_model_check.drive.drive import drive
    from palimpsest_model_check.drive.graph import dump
    from palimpsest_model_check.jvm import find_toolchain
    from palimpsest_model_check.manifest import load_manifest

    drives = []
    for model in models:
        with console.status(model.name):
            drives.append(drive(dump(model, load_manifest(), find_toolchain()), runs=args.runs))
        report.print_wrong(console, drives[-1])
    console.print(report.driven_table(drives))
    if report.never(drives):
        console.print(report.never_table(drives))
    return 1 if any(each.wrong for each in drives) else 0


def _simulate(args: argparse.Namespace, models: list[Model], console: Console) -> int:
    from palimpsest_model_check.check import Simulation
    from palimpsest_model_check.drive import report
    from palimpsest_model_check.drive.simulated import Simulated, drive_simulated
    from palimpsest_model_check.jvm import find_toolchain
    from palimpsest_model_check.manifest import load_manifest

    manifest, tools, drives = load_manifest(), find_toolchain(), []
    simulation = Simulation(args.simulate, args.depth, args.seed)
    for model in models:
        with console.status(f"{model.name}: TLC simulates") as status:

            def shown(done: Simulated) -> None:
                says = f"{done.ended:,} of {len(done.courses):,} behaviors to their ends, {done.steps:,} steps"
                status.update(f"{done.model.name}: {says}")

            drives.append(drive_simulated(model, manifest, tools, simulation, rounds=args.rounds, progress=shown))
        report.print_simulated(console, drives[-1], args.out)
    console.print(report.simulated_table(drives))
    if any(each.stops for each in drives):
        console.print(report.stops_table(drives))
    return 1 if any(each.wrong for each in drives) else 0
