"""`palimpsest diff`: what a change does to the protocol."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from palimpsest.commands._common import command_parser, make_console

_DESCRIPTION = """\
Compares two commits by what they say of the protocol: the specification's actions (guards and updates), properties and
other definitions, from its syntax trees; the life cycles' transitions; the code's registry of actions; the models. Then
which evidence stands, which was recorded anew and which must run again, and which mutants have another verdict.

It runs nothing: what ran is told from what the commits record, the numbers of states in the manifest and the kept
verdicts on mutants. `palimpsest verify` runs the evidence.

Comments and layout do not count. Exits with 0, whatever changed, and with 2 when the commits cannot be compared."""


def add_parser(subparsers: Any) -> None:
    """Add `diff` and its options."""
    parser = command_parser(subparsers, "diff", "show what a change does to the protocol", _DESCRIPTION)
    parser.add_argument("commits", metavar="BASE..HEAD", help="two commits; BASE alone is compared with HEAD")
    parser.add_argument(
        "--repository", type=Path, default=Path(), metavar="DIR", help="where the repository is (the current folder)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write it for a pull request, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it as JSON, too")


def run(args: argparse.Namespace) -> int:
    """Compare the commits, show the tables; 0 when they could be, 2 when not."""

    from palimpsest_model_check.diff import report
    from palimpsest_model_check.errors import CheckError

    try:
        difference = _difference(args.repository, args.commits)
        report.print_difference(difference, make_console())
        if args.markdown:
            args.markdown.write_text(report.markdown(difference), encoding="utf-8")
        if args.json:
            args.json.write_text(json.dumps(difference.to_json(), indent=1) + "\n", encoding="utf-8")
    except (CheckError, OSError) as error:
        print(f"palimpsest diff: {error}", file=sys.stderr)
        return 2
    return 0


def _difference(repository: Path, commits: str) -> Any:
    from palimpsest_model_check.diff.changes import compare
    from palimpsest_model_check.diff.protocol import Protocol
    from palimpsest_model_check.diff.trees import checked_out, revisions, touched

    base, head = revisions(repository, commits)
    with tempfile.TemporaryDirectory(prefix="palimpsest-diff-") as folder:
        trees = [checked_out(repository, commit, Path(folder) / name) for commit, name in ((base, "b"), (head, "h"))]
        before, after = map(Protocol.of, trees)
    return compare(base, head, before, after, touched(repository, base, head))
