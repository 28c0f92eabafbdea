"""How driving is shown: a table of graphs, one of the edges that the code never takes, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .drive import Driven, DrivenRun
from .simulated import Simulated

SIMULATED = ("model", "behaviors", "to their ends", "steps", "actions", "not taken", "schedules left out", "verdict")
COLUMNS = ("model", "states", "edges", "runs", "actions", "driven", "never", "not come to", "classes", "verdict")


def driven_table(drives: Sequence[Driven]) -> Table:
    """A row for each graph."""
    return _table("the specification's steps, taken by the package's own threads", COLUMNS, map(cells, drives))


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="left" if name in ("model", "verdict") else "right")
    for row in rows:
        table.add_row(*row)
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


def simulated_table(drives: Sequence[Simulated]) -> Table:
    """A row for each model."""
    title = "behaviors that TLC simulated, taken by the package's own threads"
    return _table(title, SIMULATED, map(simulated_cells, drives))


def simulated_cells(each: Simulated) -> tuple[str, ...]:
    """The cells of one model's row."""
    stops = sum(each.stops.values())
    numbers = len(each.courses), each.ended, each.steps, len(each.taken), stops, each.unfit_schedules
    return each.model.name, *(f"{number:,}" for number in numbers), "DIFFERS" if each.wrong else "ok"


def among_graphs(each: Simulated) -> tuple[str, ...]:
    """The cells of a simulated model in a table of graphs: a behavior is a run, and what is not known is left open."""
    stops, rest = sum(each.stops.values()), len(each.courses) - each.ended
    numbers = len(each.courses), each.steps, "", stops, rest, len(each.taken)
    shown = (f"{number:,}" if isinstance(number, int) else number for number in numbers)
    return f"{each.model.name}, simulated", "", "", *shown, simulated_cells(each)[-1]


def never_table(drives: Sequence[Driven]) -> Table:
    """What the code was asked for and never did, by action, thread and reason."""
    title = "steps of the specification that the code was asked for and never took"
    return _counted(title, "edges", never(drives))


def stops_table(drives: Sequence[Simulated]) -> Table:
    """What the code did instead of a behavior's next step, by action, thread and what it did."""
    title = "steps of behaviors that the code did not take, each time that it was asked for one"
    return _counted(title, "times", sum((each.stops for each in drives), Counter()))


def _counted(title: str, unit: str, counts: Counter[tuple[str, str]]) -> Table:
    table = Table(title=title)
    for name in (unit, "action (thread)", "what the code does"):
        table.add_column(name, justify="right" if name == unit else "left")
    for (edge, why), count in counts.most_common():
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


def print_simulated(console: Console, each: Simulated, out: Path) -> None:
    """What is wrong, the steps up to it, and where the behavior is saved."""
    for course in each.courses:
        if course.wrong is not None and course.run is not None:
            console.print(_run_table(f"{each.model.name}, behavior {course.number}", course.run))
            saved = course.counterexample().save(out)
            for says in (f"{each.model.name}: {course.wrong}", f"saved as {saved}"):
                console.print(says, markup=False, highlight=False, soft_wrap=True)


def _run_table(name: str, run: DrivenRun) -> Table:
    table = Table(title=f"{name}: the run up to what was found")
    table.add_column("step", justify="right")
    table.add_column("action (thread)")
    for number, edge in enumerate(run.taken, 1):
        table.add_row(str(number), str(edge))
    return table
