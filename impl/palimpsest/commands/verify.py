"""`palimpsest verify`: every kind of evidence, one table, and the verdict as exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .check import LOG_WIDTH, positive, terminable

_DESCRIPTION = """\
Runs every kind of evidence that there is for the specification and the code, one after the other, and prints one
table: the models, the mutants of the specification and of the code, schedules of the real threads, the replay of
traces, random programs, the soak, the tests. `--quick` takes a sample of each.

Kinds that need more than this installation has (the repository, an extra) are skipped, and say so. Exits with 1 when
one fails, and with 2 for a kind that there is not."""


def add_parser(subparsers: Any) -> None:
    """Add `verify` and its options."""
    parser = subparsers.add_parser(
        "verify",
        help="run every kind of evidence and print one table",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="a kind of evidence; else all")
    parser.add_argument("--quick", action="store_true", help="a sample of each kind, in minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--jobs", type=positive, metavar="N", help="processes at a time (cores)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn at random (0)")
    parser.add_argument("--list", action="store_true", help="show the kinds and what each shows")


def run(args: argparse.Namespace) -> int:
    """Run them, show the table; 0 when nothing fails, 1 when something does, 2 when nothing can be run."""
    from rich.console import Console

    from palimpsest_model_check.check import usable_cores
    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.verify.kind import Setting
    from palimpsest_model_check.verify.run import KINDS, kind_table, print_report, verify

    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    try:
        kinds = KINDS.select(args.kinds)
        if args.list:
            console.print(kind_table(kinds))
            return 0
        with terminable():
            report = verify(kinds, Setting(args.quick, args.jobs or usable_cores(), args.seed, console))
        print_report(report, console)
        if args.json:
            report.save(args.json)
        return 0 if report.ok else 1
    except (CheckError, OSError) as error:
        print(f"palimpsest verify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest verify: interrupted", file=sys.stderr)
        return 130
