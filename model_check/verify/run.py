"""Runs kinds of evidence one after the other, and shows what they gave."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import palimpsest

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
    started = datetime.now(UTC).isoformat(timespec="seconds")
    evidence = []
    for kind in kinds:
        evidence.append(kind.evidence(setting))
        setting.console.print(_line(evidence[-1]), markup=False, highlight=False, soft_wrap=True)
    return Report(palimpsest.__version__, setting.quick, started, tuple(evidence))


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
