"""`palimpsest check`: let TLC check the specification's models, and compare the verdicts with the expected ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.commands._common import command_parser, make_console, positive, terminable

if TYPE_CHECKING:
    from rich.console import Console

    from palimpsest_model_check.check import Outcome, Way
    from palimpsest_model_check.manifest import Manifest, Model

_DESCRIPTION = """\
Checks each model of the specification with TLC. Its verdict and its number of states must be those that the
manifest expects: a model holds, a reach model and a mutant of the specification must fail, by the property
named. Each counterexample is saved as JSON; it is shown where it is a surprise or its model was named.

Exits with 1 on any surprise, and with 2 where nothing can be checked. PALIMPSEST_JAVA and TLA2TOOLS_JAR name
another Java and another TLC than the installed ones."""


def add_parser(subparsers: Any) -> None:
    """Add `check` and its options."""
    parser = command_parser(subparsers, "check", "model-check the specification", _DESCRIPTION)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a model of the manifest; else a whole set")
    parser.add_argument(
        "--set",
        choices=("quick", "full", "deep"),
        default="quick",
        help="which models; each set has those of the ones before it (quick)",
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="models at a time, workers of a large one (cores)")
    parser.add_argument(
        "--graph", action="store_true", help="compare TLC's reachable graph with the in-process checker, edge by edge"
    )
    parser.add_argument(
        "--simulate", type=positive, metavar="N", help="N random behaviors of each model instead of all"
    )
    parser.add_argument("--depth", type=positive, default=200, metavar="N", help="steps of a random behavior (200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random behaviors (0)")
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="the models named: TLC's server, and --jobs processes that work for it",
    )
    parser.add_argument("--host", metavar="NAME", help="what workers on other machines know this one by")
    parser.add_argument("--port", type=positive, metavar="N", help="where the server listens (one that is free)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes as JSON")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("counterexamples"),
        metavar="DIR",
        help="folder of what is found (counterexamples)",
    )
    parser.add_argument("--list", action="store_true", help="show the models and what each is for")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="another manifest than the installed one")
    parser.add_argument("--spec", type=Path, metavar="DIR", help="the folder of the specification's modules")


def run(args: argparse.Namespace) -> int:
    """Check the models, show the table; 0 when all is as expected, 1 when not, 2 when nothing can be."""

    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.manifest import load_manifest

    console = make_console()
    try:
        manifest = load_manifest(args.manifest, args.spec) if args.manifest else load_manifest(spec=args.spec)
        with terminable():
            do = _list if args.list else _graph if args.graph else _check
            return do(args, manifest, console)
    except (CheckError, OSError) as error:
        print(f"palimpsest check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest check: interrupted", file=sys.stderr)
        return 130


def _list(args: argparse.Namespace, manifest: Manifest, console: Console) -> int:
    from palimpsest_model_check.report import model_table

    console.print(model_table(manifest.select(args.models)))
    return 0


def _graph(args: argparse.Namespace, manifest: Manifest, console: Console) -> int:
    from palimpsest_model_check.graph.report import comparable, compare_all
    from palimpsest_model_check.jvm import find_toolchain

    models = manifest.select(args.models) if args.models else comparable(manifest.select(which=args.set))
    return 0 if compare_all(models, manifest, find_toolchain(), console) else 1


def _check(args: argparse.Namespace, manifest: Manifest, console: Console) -> int:
    from palimpsest_model_check import report
    from palimpsest_model_check.check import Simulation, check, usable_cores
    from palimpsest_model_check.jvm import find_toolchain
    from palimpsest_model_check.tlc import run_tlc

    jobs = args.jobs or usable_cores()
    simulation = Simulation(args.simulate, args.depth, args.seed) if args.simulate else None
    models = manifest.select(args.models, "random" if simulation else args.set)
    way = _distributed(args, models, jobs) if args.distributed else run_tlc
    with report.CheckProgress(console, len(models)) as progress:
        outcomes = check(manifest, models, find_toolchain(), jobs, progress, simulation=simulation, way=way)
    files = _counterexamples(args, manifest, outcomes, console)
    console.print(report.outcome_table(outcomes))
    report.print_surprises(console, outcomes)
    if args.json:
        args.json.write_text(json.dumps(report.to_json(outcomes, files), indent=1) + "\n", encoding="utf-8")
    return 1 if any(outcome.surprise for outcome in outcomes) else 0


def _distributed(args: argparse.Namespace, models: Sequence[Model], jobs: int) -> Way:
    """A way to check with TLC's server and `jobs` workers on this machine."""
    from palimpsest_model_check import distributed
    from palimpsest_model_check.errors import CheckError

    if not args.models or args.simulate:
        raise CheckError("--distributed is for models that are named, and not for --simulate")
    distributed.require_safety(models)
    where = {"port": args.port, **({"host": args.host} if args.host else {})}
    return partial(distributed.run_distributed, workers=jobs, **where)


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
