"""How a check is shown: its progress, the table of verdicts, and the same for a machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as ProgressBars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .check import Outcome
from .manifest import OK, Model
from .output import Kind, Progress

#: text of others is printed as it is, its lines as long as they are
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class CheckProgress:
    """A line for each model that is being checked, for the time of a `with` block; where the console is no
    terminal, a line for each that has been."""

    def __init__(self, console: Console, models: int) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[TaskID, float]] = {}
        self._bars = ProgressBars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[says]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._total = self._bars.add_task(f"{models} models", total=models, says="")
        self._done, self._models = 0, models

    def __enter__(self) -> CheckProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def started(self, model: Model) -> None:
        """Show that `model` is being checked."""
        with self._lock:
            line = self._bars.add_task(escape(model.name), total=None, says="starting")
            self._lines[model.name] = line, time.monotonic()

    def progressed(self, model: Model, progress: Progress) -> None:
        """Show how far `model` is."""
        line, since = self._lines[model.name]
        self._bars.update(line, says=progress_line(progress, time.monotonic() - since))

    def finished(self, outcome: Outcome) -> None:
        """Show that the model has been checked."""
        with self._lock:
            line, _ = self._lines.pop(outcome.model.name)
            self._bars.remove_task(line)
            self._done += 1
            self._bars.update(self._total, completed=self._done, says=f"{self._done} of {self._models} checked")
        if not self._console.is_terminal:
            self._console.print(f"{outcome.model.name}: {outcome.surprise or outcome.verdict}", **_PLAIN)


def progress_line(progress: Progress, seconds: float) -> str:
    """States, queue and rate."""
    rate = progress.distinct / seconds if seconds > 0 else 0.0
    return f"{progress.distinct:,} states, {progress.queue:,} queued, {rate:,.0f}/s"


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per model."""
    wrong = sum(outcome.surprise is not None for outcome in outcomes)
    title = f"[red]{wrong} of {len(outcomes)} models SURPRISE[/red]" if wrong else f"[green]{_all(outcomes)}[/green]"
    table = Table(title=title)
    for name in ("model", "kind", "verdict", "expected"):
        table.add_column(name, overflow="fold", no_wrap=name == "model")
    for name in ("states", "seconds"):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        table.add_row(*map(escape, _cells(outcome)), style="bold red" if outcome.surprise else "")
    return table


def _all(outcomes: Sequence[Outcome]) -> str:
    return f"all {len(outcomes)} models as expected" if len(outcomes) != 1 else "as expected"


def _cells(outcome: Outcome) -> list[str]:
    model, result = outcome.model, outcome.result
    counted = [_counted(result.progress), f"{result.seconds:.1f}"] if result else ["", ""]
    return [model.name, model.kind, _verdict(outcome), _expected(model), *counted]


def _counted(progress: Progress) -> str:
    """Distinct states; of a simulation, which does not know them, those that it went through."""
    return f"{progress.distinct:,}" if progress.distinct else f"{progress.generated:,} visited"


def _verdict(outcome: Outcome) -> str:
    violated = outcome.result is not None and outcome.result.kind not in (Kind.OK, *_NO_VIOLATION)
    return f"violates {outcome.verdict}" if violated else outcome.verdict


_NO_VIOLATION = (Kind.DEADLOCK, Kind.ASSUMPTION, Kind.EVALUATION, Kind.PARSE, Kind.CRASH, Kind.LIMIT, Kind.UNNAMED)


def _expected(model: Model) -> str:
    if model.expect != OK:
        return f"violates {model.expect}" if model.expect != "Deadlock" else model.expect
    return OK if model.states is None else f"{OK}, {model.states:,} states"


def print_surprises(console: Console, outcomes: Sequence[Outcome]) -> None:
    """What is surprising about each, and what TLC said about an error."""
    for outcome in outcomes:
        if outcome.surprise is None:
            continue
        console.print(f"{outcome.model.name}: {outcome.surprise}", style="red", **_PLAIN)
        if outcome.result and outcome.result.kind in _NO_VIOLATION and outcome.result.explanation:
            console.print(outcome.result.explanation, **_PLAIN)


def model_table(models: Sequence[Model]) -> Table:
    """The models there are, and what each is for."""
    table = Table(title=f"{len(models)} models")
    for name in ("model", "kind", "set", "size", "expected", "purpose"):
        table.add_column(name, overflow="fold", no_wrap=name in ("model", "expected"))
    for model in models:
        cells = (model.name, model.kind, model.set, model.size, _expected(model), model.purpose)
        table.add_row(*map(escape, cells))
    return table


def to_json(outcomes: Sequence[Outcome], counterexamples: dict[str, str]) -> dict[str, Any]:
    """The outcomes for `json.dump`; `counterexamples` has the file of each model that has one."""
    return {
        "as_expected": all(outcome.surprise is None for outcome in outcomes),
        "models": [
            {**_outcome_json(outcome), "counterexample": counterexamples.get(outcome.model.name)}
            for outcome in outcomes
        ],
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    model, result = outcome.model, outcome.result
    return {
        "model": model.name,
        "kind": model.kind,
        "set": model.set,
        "purpose": model.purpose,
        "verdict": outcome.verdict,
        "expected": model.expect,
        "surprise": outcome.surprise,
        "distinct": result.progress.distinct if result else None,
        "generated": result.progress.generated if result else None,
        "expected_states": model.states,
        "seconds": round(result.seconds, 3) if result else None,
        "explanation": result.explanation if result else "",
    }
