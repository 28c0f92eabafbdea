"""How exploring is shown: progress, the table of scenarios, and a schedule as a table of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .explore import Outcome, Run
from .scenario import Scenario
from .threads import GOES, Step

_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class ExploreProgress:
    """A line of the scenario that is being explored, for the time of a `with` block; where the console is no terminal,
    a line for each that has been."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> ExploreProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def progressed(self, outcome: Outcome) -> None:
        """Show how far a scenario is."""
        if self._live is not None and outcome.schedules % 20 == 0:
            self._live.update(_line(outcome), refresh=True)

    def ended(self, outcome: Outcome) -> None:
        """Show what a scenario gave."""
        if self._live is not None:
            self._live.update(_line(outcome), refresh=True)
        else:
            self._console.print(f"{_line(outcome)}: {verdict(outcome)}", **_PLAIN)


def _line(outcome: Outcome) -> str:
    where = "at random" if outcome.bound is None else f"bound {outcome.bound}"
    rate = outcome.schedules / outcome.seconds if outcome.seconds else 0.0
    states = f", {outcome.states:,} states" if outcome.bound is not None else ""
    return f"{outcome.scenario.name}, {where}: {outcome.schedules:,} schedules, {rate:,.0f}/s{states}"


def verdict(outcome: Outcome) -> str:
    """A word or two."""
    if outcome.found is not None:
        return f"found: {outcome.found.finding.kind}" if outcome.found.finding else "found"
    return "holds" if outcome.exhausted or outcome.bound is None else "not finished"


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """One line per scenario."""
    schedules, seconds = sum(each.schedules for each in outcomes), sum(each.seconds for each in outcomes)
    found = sum(not each.ok for each in outcomes)
    title = f"{len(outcomes)} scenarios, {schedules:,} schedules, {schedules / max(seconds, 1e-9):,.0f}/s"
    table = Table(title=f"{title}: {found or 'nothing'} found")
    for name, right in (("scenario", 0), ("schedules", 1), ("exhausted", 0), ("states", 1), ("verdict", 0), ("s", 1)):
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "scenario")
    for each in outcomes:
        bound = "random" if each.bound is None else f"at bound {each.bound}" if each.exhausted else "no"
        states = f"{each.states:,}" if each.bound is not None else ""
        table.add_row(each.scenario.name, f"{each.schedules:,}", bound, states, verdict(each), f"{each.seconds:.1f}")
    return table


def scenario_table(scenarios: Sequence[Scenario]) -> Table:
    """The scenarios and what each is for."""
    table = Table(title=f"{len(scenarios)} scenarios")
    for name in ("scenario", "number", "what must hold"):
        table.add_column(name, no_wrap=name == "scenario")
    for each in scenarios:
        table.add_row(each.name, each.number, each.purpose)
    return table


def print_run(console: Console, run: Run) -> None:
    """A run as a table: a column for each thread, a line for each turn, and what was found at its end."""
    threads = list(dict.fromkeys(step.thread for step in run.steps))
    table = Table(title=f"{run.scenario.name}: {run.scenario.purpose}", title_justify="left")
    table.add_column("step", justify="right")
    for thread in threads:
        table.add_column(thread, overflow="fold")
    for number, turn in turns_of(run.steps):
        cells = [Text() for _ in threads]
        cells[threads.index(turn[0].thread)] = Text(describe(turn))
        table.add_row(str(number), *cells)
    console.print(table)
    console.print(str(run.finding or "nothing found"), style="red" if run.finding else "green", **_PLAIN)


def turns_of(steps: Sequence[Step]) -> Iterator[tuple[int, list[Step]]]:
    """Steps that one thread took one after the other, and the number of the first."""
    turn: list[Step] = []
    for number, step in enumerate(steps, 1):
        if turn and turn[0].thread != step.thread:
            yield number - len(turn), turn
            turn = []
        turn.append(step)
    if turn:
        yield len(steps) + 1 - len(turn), turn


def describe(turn: Sequence[Step]) -> str:
    """Where the thread goes on, and the actions that it then takes; operations in brackets, faults in capitals."""
    words = [f"[{turn[0].operation}]"] if turn[0].how == GOES else []
    for step in turn:
        if step.how != GOES:
            words.append(f"[{step.operation}] {step.how.upper()}")
        elif step.what in ("read", "write", "land", "call") and step is not turn[0]:
            words.append(f"[{step.operation}]")
        words += step.actions
    return " ".join(words)
