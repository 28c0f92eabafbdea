"""`palimpsest bench`: what the cache costs beside the copies that its work cannot do without."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.commands._common import command_parser, make_console, positive

if TYPE_CHECKING:
    from rich.console import Console

    from palimpsest.bench.results import Report

_DESCRIPTION = """\
Runs workloads on the cache, and beside it the floor: plain copies of the same bytes, on the same slots, in the
same process. The ratio of the two is what the cache costs. A pass that does not count comes first; then the best
of all repeats is taken, of the cache and of the floor. Every delivered row is checked, bit by bit.

Exits with 1 when a row is wrong, whatever the speed, and with 2 when nothing can be measured.

a, f: decode of 64 and 512 requests; b: prefill; c, C: hits, without and with a forward in between; d: deferred rows,
and their write at the end; e: blocks reused under pending reads. On an accelerator: decode64, decode256, prefill8192
and hits, each a step with the cache beside the same step without it."""


def add_parser(subparsers: Any) -> None:
    """Add `bench` and its options."""
    parser = command_parser(subparsers, "bench", "measure the cache beside the copies alone", _DESCRIPTION)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="a workload; else all of the device")
    parser.add_argument("--device", default="cpu", help="where the live buffers are (cpu)")
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="repeats of each workload (5)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of torch, on the CPU (2)")
    parser.add_argument("--quick", action="store_true", help="small sizes, which show that it works and no speed")
    parser.add_argument("--growth", action="store_true", help="measure how a decode step grows, too")
    parser.add_argument("--tracing", action="store_true", help="measure what tracing adds to a decode step, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--compare", type=Path, nargs=2, metavar="FILE", help="show two saved runs side by side")
    other.add_argument("--against", metavar="REV", help="measure another commit and this tree, in turns")
    other.add_argument("--docs", type=Path, metavar="FILE", help="put the runs saved in measured/ beside FILE into it")


def run(args: argparse.Namespace) -> int:
    """Measure, compare, or write the docs; 0, or 1 for a wrong row, or 2 when that cannot be done."""

    from palimpsest.bench.revisions import RevisionError

    console = make_console()
    try:
        if args.compare:
            return _compare(args.compare, console)
        if args.docs:
            return _docs(args.docs, console)
        return _against(args, console) if args.against else _measure(args, console)
    except (OSError, ValueError, RevisionError) as error:
        print(f"palimpsest bench: {error}", file=sys.stderr)
        return 2


def _compare(files: list[Path], console: Console) -> int:
    from palimpsest.bench.report import print_comparison
    from palimpsest.bench.results import Report

    first, second = (Report.load(file) for file in files)
    print_comparison(console, (files[0].stem, files[1].stem), first, second)
    return 1 if first.rows_wrong or second.rows_wrong else 0


def _docs(document: Path, console: Console) -> int:
    from palimpsest.bench import docs

    for file in docs.update(document):
        console.print(f"wrote {file}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _against(args: argparse.Namespace, console: Console) -> int:
    from palimpsest.bench.report import print_comparison
    from palimpsest.bench.revisions import against

    if args.growth or args.tracing:
        raise ValueError("--against compares workloads, and neither --growth nor --tracing")
    options = [*args.workloads, "--device", args.device, "--threads", str(args.threads), "--repeats", "1"]
    there, here = against(args.against, [*options, *(["--quick"] if args.quick else [])], args.repeats)
    print_comparison(console, (args.against, "this tree"), there, here)
    return _finish(here, args, console, others_wrong=there.rows_wrong)


def _measure(args: argparse.Namespace, console: Console) -> int:
    from palimpsest.bench.report import print_report
    from palimpsest.bench.runner import measure_all

    with console.status("measuring") as status:
        report = measure_all(args, lambda name: status.update(f"measuring {name}"))
    print_report(console, report)
    return _finish(report, args, console)


def _finish(report: Report, args: argparse.Namespace, console: Console, others_wrong: int = 0) -> int:
    if args.json:
        report.save(args.json)
        console.print(f"saved as {args.json}", markup=False, highlight=False, soft_wrap=True)
    return 1 if report.rows_wrong or others_wrong else 0
