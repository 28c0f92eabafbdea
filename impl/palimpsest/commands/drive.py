"""`palimpsest drive`: what the specification reaches, taken by the package's own threads."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from palimpsest.commands._common import command_parser, make_console, positive

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
driven."""


def add_parser(subparsers: Any) -> None:
    """Add `drive` and its options."""
    parser = command_parser(subparsers, "drive", "take the specification's steps with the real threads", _DESCRIPTION)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="small models of the manifest; else a choice of them"
    )
    parser.add_argument("--runs", type=positive, metavar="N", help="at most N runs of each model")


def run(args: argparse.Namespace) -> int:
    """Drive the models, show the tables; 0 when no state differs, 1 when one does, 2 when nothing can be driven."""

    from palimpsest_model_check.drive.models import drivable
    from palimpsest_model_check.errors import CheckError

    console = make_console()
    try:
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
