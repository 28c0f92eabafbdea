"""Runs kinds of evidence, those that take one process side by side, and shows what they gave."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import palimpsest

from ..errors import CheckError
from . import of_both, of_code, of_spec
from .evidence import Evidence, Report, Verdict
from .kind import Kind, Kinds, Setting

#: every kind of evidence there is
KINDS = Kinds.of(
    of_spec.models, of_spec.mutants, of_spec.graph, of_code.code_mutants, of_code.explore, of_code.replay,
    of_both.driven, of_code.mirror, of_code.programs, of_code.soaking, of_code.tests,
)  # fmt: skip

_STYLES = {Verdict.HOLDS: "green", Verdict.FAILS: "bold red", Verdict.SKIPPED: "yellow"}


def verify(kinds: Sequence[Kind], setting: Setting) -> Report:
    """A report with the evidence of each kind, in their order; a line is printed for each as it comes."""
    started, start, found = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic(), {}
    for each in _evidence(kinds, setting):
        found[each.kind] = each
        setting.console.print(_line(each), markup=False, highlight=False, soft_wrap=True)
    evidence, seconds = tuple(found[kind.name] for kind in kinds), round(time.monotonic() - start, 1)
    return Report(palimpsest.__version__, setting.quick, started, evidence, seconds)


def _evidence(kinds: Sequence[Kind], setting: Setting) -> Iterator[Evidence]:
    """Of each kind, as it comes: first those that take all processes, then the others side by side."""
    beside = [kind for kind in kinds if not kind.alone and KINDS.get(kind.name) is kind]
    if setting.jobs == 1 or len(beside) == 1:
        beside = []
    for kind in kinds:
        if kind not in beside:
            yield kind.evidence(setting)
    if beside:
        yield from _side_by_side(beside, setting)


def _side_by_side(kinds: Sequence[Kind], setting: Setting) -> Iterator[Evidence]:
    """Of each kind, in a process of its own; the last ones first, which take longest in a full run."""
    said = setting.quick, setting.seed, setting.findings
    pool = ProcessPoolExecutor(setting.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    try:
        with setting.console.status(f"{', '.join(kind.name for kind in kinds)}, side by side"):
            for ended in as_completed([pool.submit(_of, kind.name, *said) for kind in reversed(kinds)]):
                yield ended.result()
    except BrokenExecutor as error:
        raise CheckError("a process with evidence was ended from outside, for want of memory perhaps") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _of(name: str, quick: bool, seed: int, findings: Path | None) -> Evidence:
    return KINDS[name].evidence(Setting(quick, 1, seed, Console(quiet=True), findings))


def _line(each: Evidence) -> str:
    counted = f"{each.count:,} {each.unit}, " if each.unit else ""
    return f"{each.kind}: {each.verdict}, {counted}{each.seconds:.1f} s{': ' if each.says else ''}{each.says}"


def report_table(report: Report) -> Table:
    """A line for each kind."""
    minutes, seconds = divmod(round(report.seconds), 60)
    mode = "quick" if report.quick else "full"
    verdict = "[green]holds[/green]" if report.ok else "[bold red]FAILS[/bold red]"
    table = Table(title=f"Palimpsest {report.version}, {mode}: {verdict} after {minutes} min {seconds} s")
    for name in ("kind", "what it shows", "count", "verdict", "seconds", "says"):
        table.add_column(name, justify="right" if name in ("count", "seconds") else "left", overflow="fold")
    for each in report.evidence:
        count = f"{each.count:,} {each.unit}" if each.unit else ""
        cells = (each.kind, each.what, count, str(each.verdict), f"{each.seconds:.1f}", each.says)
        table.add_row(*map(escape, cells), style="" if each.verdict is Verdict.HOLDS else _STYLES[each.verdict])
    return table


def kind_table(kinds: Sequence[Kind]) -> Table:
    """The kinds there are."""
    table = Table(title=f"{len(kinds)} kinds of evidence")
    table.add_column("kind", no_wrap=True)
    table.add_column("what it shows")
    for kind in kinds:
        table.add_row(kind.name, kind.what)
    return table


def print_report(report: Report, console: Console) -> None:
    """The table, and a line that counts the verdicts."""
    console.print(report_table(report))
    counts = {verdict: sum(each.verdict is verdict for each in report.evidence) for verdict in Verdict}
    console.print(", ".join(f"{times} {verdict}" for verdict, times in counts.items() if times))
