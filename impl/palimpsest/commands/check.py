"""`palimpsest check`: let TLC check the specification's models, and compare the verdicts with the expected ones."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from palimpsest_model_check.check import Outcome
    from palimpsest_model_check.manifest import Manifest

_DESCRIPTION = """\
Checks each model of the specification with TLC. Its verdict and its number of states must be those that the
manifest expects: a model holds, a reach model and a mutant of the specification must fail, by the property
named. Each counterexample is saved as JSON; it is shown where it is a surprise or its model was named.

Exits with 1 on any surprise, and with 2 where nothing can be checked. PALIMPSEST_JAVA and TLA2TOOLS_JAR name
another Java and another TLC than the installed ones."""

#: of the tables where no terminal has a width
LOG_WIDTH = 140


def add_parser(subparsers: Any) -> None:
    """Add `check` and its options."""
    parser = subparsers.add_parser(
        "check",
        help="model-check the specification",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a model of the manifest; else a whole set")
    parser.add_argument("--set", choices=("quick", "full"), default="quick", help="full has the quick ones too (quick)")
    parser.add_argument("--jobs", type=positive, metavar="N", help="models at a time, workers of a large one (cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes as JSON")
    parser.add_argument("--out", type=Path, default=Path("counterexamples"), metavar="DIR", help="(counterexamples)")
    parser.add_argument("--list", action="store_true", help="show the models and what each is for")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="another manifest than the installed one")
    parser.add_argument("--spec", type=Path, metavar="DIR", help="the folder of the specification's modules")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Check the models, show the table; 0 when all is as expected, 1 when not, 2 when nothing can be."""
    from rich.console import Console

    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.manifest import load_manifest

    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    try:
        manifest = load_manifest(args.manifest, args.spec) if args.manifest else load_manifest(spec=args.spec)
        with terminable():
            return _list(args, manifest, console) if args.list else _check(args, manifest, console)
    except (CheckError, OSError) as error:
        print(f"palimpsest check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest check: interrupted", file=sys.stderr)
        return 130


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM is an interrupt like that of a keyboard, so that no JVM outlives the command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _list(args: argparse.Namespace, manifest: Manifest, console: Console) -> int:
    from palimpsest_model_check.report import model_table

    console.print(model_table(manifest.select(args.models)))
    return 0


def _check(args: argparse.Namespace, manifest: Manifest, console: Console) -> int:
    from palimpsest_model_check import report
    from palimpsest_model_check.check import check, usable_cores
    from palimpsest_model_check.jvm import find_toolchain

    models = manifest.select(args.models, args.set)
    with report.CheckProgress(console, len(models)) as progress:
        outcomes = check(manifest, models, find_toolchain(), args.jobs or usable_cores(), progress)
    files = _counterexamples(args, manifest, outcomes, console)
    console.print(report.outcome_table(outcomes))
    report.print_surprises(console, outcomes)
    if args.json:
        args.json.write_text(json.dumps(report.to_json(outcomes, files), indent=1) + "\n", encoding="utf-8")
    return 1 if any(outcome.surprise for outcome in outcomes) else 0


def _counterexamples(
    args: argparse.Namespace, manifest: Manifest, outcomes: list[Outcome], console: Console
) -> dict[str, str]:
    """Save each counterexample, and show those that were asked for or are a surprise; gives their files."""
    from palimpsest_model_check.counterexample import Counterexample, print_counterexample

    files = {}
    for outcome in outcomes:
        if outcome.result is None or not outcome.result.steps:
            continue
        model = outcome.model
        example = Counterexample.of(model.name, outcome.result, model.purpose, manifest.threads)
        files[model.name] = str(example.save(args.out))
        if args.models or outcome.surprise:
            print_counterexample(example, console)
            console.print(f"saved as {files[model.name]}", markup=False, highlight=False, soft_wrap=True)
    return files
