"""Progress of a run, and its table, on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from palimpsest.runners.reference.report import Report


class ServingProgress:
    """A bar over the requests, with what was checked so far, for the time of a `with` block."""

    def __init__(self, console: Console, requests: int) -> None:
        self._bar = Progress(
            TextColumn("serving"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[checked]:,} rows checked, {task.fields[wrong]:,} wrong"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("serving", total=requests, checked=0, wrong=0)

    def __enter__(self) -> ServingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, report: Report) -> None:
        """Move the bar to where `report` is."""
        self._bar.update(
            self._task,
            completed=report.scheduler.finished,
            checked=report.verdict.rows_checked,
            wrong=report.verdict.rows_wrong,
        )


def report_table(report: Report, events: int | None) -> Table:
    """The table of a finished run."""
    color = "green" if report.right else "red"
    table = Table(title=f"[{color}]{'every row is right' if report.right else 'ROWS ARE WRONG'}[/{color}]")
    table.add_column("counted")
    table.add_column("count", justify="right")
    for name, count in report.lines(events):
        table.add_row(name, count, style="bold" if name.startswith("rows wrong") else "")
    return table
