"""How driving is shown: a table of graphs, one of the edges that the code never takes, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .drive import Driven, DrivenRun

COLUMNS = ("model", "states", "edges", "runs", "actions", "driven", "never", "not come to", "classes", "verdict")


def driven_table(drives: Sequence[Driven]) -> Table:
    """A row for each graph."""
    table = Table(title="the specification's steps, taken by the package's own threads")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("model", "verdict") else "right")
    for each in drives:
        table.add_row(*cells(each))
    return table


def cells(each: Driven) -> tuple[str, ...]:
    """The cells of one graph's row."""
    coverage, edges = each.coverage, each.graph.edges
    classes = {str(edge) for edge in edges}
    numbers = (
        len(each.graph.states), len(edges), each.runs, each.actions,
        len(coverage.driven), len(coverage.never), len(coverage.unasked()),
    )  # fmt: skip
    taken = f"{len({str(edge) for edge in coverage.driven})} of {len(classes)}"
    verdict = "DIFFERS" if each.found else "INCOMPLETE" if each.missing else "ok"
    return each.graph.name, *(f"{number:,}" for number in numbers), taken, verdict


def never_table(drives: Sequence[Driven]) -> Table:
    """What the code was asked for and never did, by action, thread and reason."""
    table = Table(title="steps of the specification that the code was asked for and never took")
    for name in ("edges", "action (thread)", "what the code does"):
        table.add_column(name, justify="right" if name == "edges" else "left")
    for (edge, why), count in never(drives).most_common():
        table.add_row(f"{count:,}", edge, why)
    return table


def never(drives: Sequence[Driven]) -> Counter[tuple[str, str]]:
    """How many edges the code never took, by action, thread and reason."""
    return Counter((str(edge), why) for each in drives for edge, why in each.coverage.never.items())


def print_wrong(console: Console, each: Driven) -> None:
    """What is wrong, and the steps of the run in which it was found."""
    if each.found is not None:
        console.print(_run_table(each.graph.name, each.found))
    for says in each.wrong:
        console.print(f"{each.graph.name}: {says}", markup=False, highlight=False, soft_wrap=True)


def _run_table(name: str, run: DrivenRun) -> Table:
    table = Table(title=f"{name}: the run up to what was found")
    table.add_column("step", justify="right")
    table.add_column("action (thread)")
    for number, edge in enumerate(run.taken, 1):
        table.add_row(str(number), str(edge))
    return table
