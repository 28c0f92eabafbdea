"""`palimpsest mutants`: mutants of the specification, or of the code, each of which a property must kill."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.commands._common import command_parser, make_console, positive, terminable

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Makes mutants of the specification, each with one mistake: a guard dropped, an update not made, a premise of a
property dropped, or a mistake of the catalogue. TLC must find a model, of the smaller ones, in which a property kills
each; a survivor must be explained, and each property must kill a mutant that no other kills. Verdicts are kept by
content: only what changed is run, and what --sample or --all ask for besides.

With --code it makes mutants of the package instead: slips of a concurrency change, each as a replacement in the text
that a process imports. Exploring schedules of the real threads must catch each, by the property that the catalogue
names; the same schedule must find nothing in the unchanged code.

Exits with 1 on an unexplained survivor, and with 2 where nothing can be checked."""


def add_parser(subparsers: Any) -> None:
    """Add `mutants` and its options."""
    parser = command_parser(
        subparsers, "mutants", "check that each mistake in the specification is caught", _DESCRIPTION
    )
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="run those with this in their names")
    parser.add_argument("--code", action="store_true", help="mutants of the code instead of the specification")
    parser.add_argument("--all", action="store_true", help="run all, whatever changed")
    parser.add_argument("--sample", type=_part, default=0.0, metavar="PART", help="run a random part besides, as 0.1")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random part (0)")
    parser.add_argument("--jobs", type=positive, metavar="N", help="JVMs at a time (cores)")
    parser.add_argument("--list", action="store_true", help="show the mutants and what is known of each")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="another manifest than the installed one")
    parser.add_argument("--spec", type=Path, metavar="DIR", help="the folder of the specification's modules")
    parser.add_argument("--data", type=Path, metavar="DIR", help="another folder of verdicts and reasons")


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0.0 <= part <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no part between 0 and 1")
    return part


def run(args: argparse.Namespace) -> int:
    """Run the mutants, show the table; 0 when none survives unexplained, 1 when one does, 2 when nothing can run."""

    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.manifest import load_manifest
    from palimpsest_model_check.mutants.session import Session, Which

    console = make_console()
    try:
        if args.code:
            return _run_code(args, console)
        manifest = load_manifest(args.manifest, args.spec) if args.manifest else load_manifest(spec=args.spec)
        session = Session(manifest, args.data)
        if args.list:
            session.show(args.mutants, console)
            return 0
        with terminable():
            which = Which(tuple(args.mutants), args.all, args.sample, args.seed)
            return 0 if session.run(which, args.jobs, console) else 1
    except (CheckError, OSError) as error:
        print(f"palimpsest mutants: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest mutants: interrupted; what came out so far is kept", file=sys.stderr)
        return 130


def _run_code(args: argparse.Namespace, console: Console) -> int:
    from palimpsest_model_check.mutants.code_report import mutant_list, run_code_mutants, select

    if args.list:
        console.print(mutant_list(select(args.mutants)))
        return 0
    with terminable():
        return 0 if run_code_mutants(args.mutants, args.jobs, console) else 1
