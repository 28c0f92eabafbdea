"""Two commits, measured in turns: each in a process of its own, by the benchmark of this tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import palimpsest
from palimpsest.bench.results import Measured, Report
from palimpsest.errors import PalimpsestError

_PACKAGE = Path(palimpsest.__file__).parent
#: the benchmark's own files, which are put over those of the other commit
_OWN = ("bench", "commands/bench.py")
_TIMEOUT_S = 3600


class RevisionError(PalimpsestError):
    """Another commit cannot be checked out or measured."""


def against(revision: str, options: Sequence[str], rounds: int) -> tuple[Report, Report]:
    """The reports of `revision` and of this tree, run with `options` alternately, `rounds` times each.

    Raises `RevisionError` with what git or a run said.
    """
    with checked_out(revision) as tree, tempfile.TemporaryDirectory() as folder:
        there, here = [], []
        for number in range(rounds):
            there.append(_run(tree / "impl", Path(folder) / f"there{number}.json", options))
            here.append(_run(_PACKAGE.parent, Path(folder) / f"here{number}.json", options))
    return merged(there), merged(here)


def merged(reports: Sequence[Report]) -> Report:
    """One report with the repeats of all, which are runs of the same workloads."""
    first = reports[0]
    return replace(first, workloads=[_merge([r.workloads[n] for r in reports]) for n in range(len(first.workloads))])


def _merge(same: Sequence[Measured]) -> Measured:
    return replace(
        same[0],
        repeats=[repeat for each in same for repeat in each.repeats],
        rows_checked=sum(each.rows_checked for each in same),
        rows_wrong=sum(each.rows_wrong for each in same),
    )


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A temporary worktree of `revision`, with this benchmark in it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(tree), revision)
        try:
            for name in _OWN:
                _put(_PACKAGE / name, tree / "impl" / "palimpsest" / name)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _put(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RevisionError(f"git {' '.join(arguments[:2])}: {done.stderr.strip()}")


def _run(code: Path, out: Path, options: Sequence[str]) -> Report:
    """One run of the command on the package in `code`."""
    command = [sys.executable, "-m", "palimpsest", "bench", *options, "--json", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    done = subprocess.run(
        command, env=environment, cwd=out.parent, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if not out.exists():
        raise RevisionError(f"the benchmark failed on {code}:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return Report.load(out)
