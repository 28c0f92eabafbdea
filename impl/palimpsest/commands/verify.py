"""`palimpsest verify`: every kind of evidence, one table, and the verdict as exit code."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from palimpsest.commands._common import command_parser, make_console, positive, terminable

_DESCRIPTION = """\
Runs every kind of evidence that there is for the specification and the code, and prints one
table: the models, the mutants of the specification and of the code, schedules of the real threads, the replay of
traces, random programs, the soak, the tests. `--quick` takes a sample of each.

Kinds that need more than this installation has (the repository, an extra) are skipped, and say so. Exits with 1 when
one fails, and with 2 for a kind that there is not."""


def add_parser(subparsers: Any) -> None:
    """Add `verify` and its options."""
    parser = command_parser(subparsers, "verify", "run every kind of evidence and print one table", _DESCRIPTION)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="a kind of evidence; else all")
    parser.add_argument("--quick", action="store_true", help="a sample of each kind, in minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="PAGE", help="write the report as one page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write it for a pull request, in one screen")
    parser.add_argument(
        "--out", type=Path, default=Path("findings"), metavar="DIR", help="folder of what is found (findings)"
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="processes at a time (cores)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of what is drawn at random (0)")
    parser.add_argument("--list", action="store_true", help="show the kinds and what each shows")


def run(args: argparse.Namespace) -> int:
    """Run them, show the table; 0 when nothing fails, 1 when something does, 2 when nothing can be run."""

    from palimpsest_model_check.check import usable_cores
    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.verify.kind import Setting
    from palimpsest_model_check.verify.run import KINDS, kind_table, print_report, verify

    console = make_console()
    try:
        kinds = KINDS.select(args.kinds)
        if args.list:
            console.print(kind_table(kinds))
            return 0
        setting = Setting(args.quick, args.jobs or usable_cores(), args.seed, console, args.out)
        started = time.time()
        with terminable():
            report = verify(kinds, setting)
        print_report(report, console)
        if args.json:
            report.save(args.json)
        _pages(args, report, started)
        return 0 if report.ok else 1
    except (CheckError, OSError) as error:
        print(f"palimpsest verify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest verify: interrupted", file=sys.stderr)
        return 130


def _pages(args: argparse.Namespace, report: Any, started: float) -> None:
    """The page and the comment that are asked for, with what this run found."""
    from palimpsest_model_check.verify.findings import findings
    from palimpsest_model_check.verify.markdown import markdown
    from palimpsest_model_check.verify.properties import proven
    from palimpsest_model_check.verify.report_page import report_page

    if not args.html and not args.markdown:
        return
    files = [file for file in sorted(args.out.glob("*")) if file.is_file() and file.stat().st_mtime >= started - 1]
    found, properties = findings(files), proven()
    for path, text in ((args.html, report_page), (args.markdown, markdown)):
        if path:
            path.write_text(text(report, properties, found), encoding="utf-8")
