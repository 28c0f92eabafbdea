"""`palimpsest view`: a trace, a counterexample or a schedule as a picture."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from palimpsest.commands._common import command_parser

_DESCRIPTION = """\
Draws a trace (NDJSON), a counterexample that `palimpsest check` saved, or a schedule that `palimpsest explore` saved: a
lane per thread, and below it what each slot, page and task was over time. The step that fails stands out, with the
property that it breaks in words. The page is one file and needs no network.

A trace is replayed in process up to the first event that is rejected; a schedule is run again. Exits with 0 when the
file was drawn, whatever it shows, and with 2 when it cannot be."""


def add_parser(subparsers: Any) -> None:
    """Add `view` and its options."""
    parser = command_parser(subparsers, "view", "draw a trace, a counterexample or a schedule", _DESCRIPTION)
    parser.add_argument("file", type=Path, metavar="FILE", help="a trace, a counterexample or a schedule")
    parser.add_argument("-o", "--out", type=Path, metavar="PAGE", help="where the page goes (FILE's name with .html)")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the Chrome trace format instead")
    parser.add_argument("--itf", type=Path, metavar="FILE", help="write the Informal Trace Format instead")


def run(args: argparse.Namespace) -> int:
    """Draw the file; 0 when it was drawn, 2 when it cannot be."""
    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.view.open import open_picture

    try:
        picture = open_picture(args.file)
        for path, text in _files(args, picture):
            path.write_text(text, encoding="utf-8")
            print(f"{path}: {len(text.encode()) / 1e6:.1f} MB, {_verdict(picture)}")
    except (CheckError, OSError) as error:
        print(f"palimpsest view: {error}", file=sys.stderr)
        return 2
    return 0


def _files(args: argparse.Namespace, picture: Any) -> list[tuple[Path, str]]:
    """What is asked for, made before anything is written."""
    from palimpsest_model_check.view.itf import itf
    from palimpsest_model_check.view.page import page
    from palimpsest_model_check.view.perfetto import chrome_trace

    made = []
    if args.perfetto:
        made.append((args.perfetto, json.dumps(chrome_trace(picture)) + "\n"))
    if args.itf:
        made.append((args.itf, json.dumps(itf(args.file, picture)) + "\n"))
    if args.out or not made:
        made.append((args.out or args.file.with_suffix(".html"), page(picture)))
    return made


def _verdict(picture: Any) -> str:
    failure = picture.failure
    if failure is None:
        return f"{len(picture.moments):,} moments, nothing fails"
    names = ", ".join(name for name, _ in failure.properties)
    return f"fails: {failure.what}{f' (breaks {names})' if names else ''}"
