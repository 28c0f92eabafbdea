"""How mutants are shown: progress, a table of what killed each, and what is wrong."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars
from rich.table import Table

from .explained import Explained
from .generator import Mutant
from .runner import SHOWN, Case
from .verdicts import Record, Verdicts


class MutantProgress:
    """A bar and the last verdict, for the time of a `with` block; a line per mutant where there is no terminal."""

    def __init__(self, console: Console, mutants: int) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._bars = ProgressBars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[says]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("mutants", total=mutants, says="")

    def __enter__(self) -> MutantProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def restart(self, what: str) -> None:
        """Something else is counted from now on, and how many there are is not known."""
        self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=None, says="")
        self.at(what)

    def at(self, what: str) -> None:
        """Show what is being done."""
        self._bars.update(self._task, description=what)
        if not self._console.is_terminal:
            self._line(what)

    def ended(self, case: Case) -> None:
        """Show what came out of a mutant."""
        says = f"{case.mutant.name}: {case.killed_by or 'survives'}"
        with self._lock:
            self._bars.update(self._task, advance=1, says=escape(says))
        if not self._console.is_terminal:
            self._line(f"{says}, {case.model or len(case.said)}, {case.seconds:.1f} s")

    def _line(self, text: str) -> None:
        at = f"{time.monotonic() - self._start:.0f} s: {text}"
        self._console.print(at, markup=False, highlight=False, soft_wrap=True)


def mutant_table(mutants: Sequence[Mutant], verdicts: Verdicts, explained: Explained) -> Table:
    """One row per mutant."""
    counted = Counter(_state(mutant, verdicts, explained) for mutant in mutants)
    table = Table(title=", ".join(f"{times} {state}" for state, times in counted.items()) or "nothing to run")
    for name in ("mutant", "killed by", "model", "says"):
        table.add_column(name, overflow="fold", no_wrap=name == "killed by")
    table.add_column("seconds", justify="right")
    for mutant in mutants:
        state, known = _state(mutant, verdicts, explained), verdicts.mutants.get(mutant.name)
        killer = known.killed_by if known and known.killed_by else state
        model, seconds = (known.model or "", f"{known.seconds:.1f}") if known else ("", "")
        style = "" if state == "killed" else "yellow" if state == "explained" else "bold red"
        table.add_row(*map(escape, (mutant.name, killer, model, mutant.says, seconds)), style=style)
    return table


def _state(mutant: Mutant, verdicts: Verdicts, explained: Explained) -> str:
    known = verdicts.mutants.get(mutant.name)
    if known is None:
        return "not run"
    return "killed" if known.killed_by else "explained" if mutant.name in explained.mutants else "SURVIVES"


def unexplained(mutants: Sequence[Mutant], verdicts: Verdicts, explained: Explained) -> list[str]:
    """The survivors without a reason, and what showed nothing about them."""
    found = []
    for mutant in mutants:
        known = verdicts.mutants.get(mutant.name)
        if known is None:
            found.append(f"{mutant.name} was not run: {mutant.says}")
        elif known.killed_by is None and mutant.name not in explained.mutants:
            found.append(f"{mutant.name} survives{_nothing_shown(known)}: {mutant.says}")
    return found


def _nothing_shown(known: Record) -> str:
    counted = Counter(said for said in known.said.values() if said not in SHOWN)
    return f" ({', '.join(f'{said} in {times} models' for said, times in counted.items())})" if counted else ""


def stale(mutants: Mapping[str, Mutant], verdicts: Verdicts, explained: Explained) -> list[str]:
    """The reasons for mutants that are none any more, or that are killed."""
    gone = [f"{name} has a reason to survive, and is no mutant" for name in explained.mutants if name not in mutants]
    known = {name: verdicts.mutants.get(name) for name in explained.mutants}
    killed = [f"{name} has a reason to survive, and {each.killed_by} kills it" for name, each in known.items()
              if each and each.killed_by]  # fmt: skip
    return gone + killed


def idle(properties: Sequence[str]) -> list[str]:
    """What is wrong with properties that kill no mutant alone, and have no reason."""
    return [f"{name} is not known to kill a mutant that no other property kills" for name in properties]


def property_table(
    properties: Sequence[str], mutants: Mapping[str, Mutant], verdicts: Verdicts, explained: Explained
) -> Table:
    """One row per property: how many mutants it kills first, and one that only it kills."""
    killed = Counter(record.killed_by for record in verdicts.mutants.values())
    table = Table(title="properties")
    table.add_column("property", no_wrap=True)
    table.add_column("kills", justify="right")
    table.add_column("alone", overflow="fold")
    for name in properties:
        mutant = mutants.get(verdicts.alone.get(name, {}).get("mutant", ""))
        says = f"{mutant.name}: {mutant.says}" if mutant else explained.properties.get(name, "none")
        table.add_row(name, str(killed[name]), escape(says), style="" if mutant else "yellow")
    return table


def print_end(console: Console, run: int, mutants: int, wrong: Sequence[str]) -> None:
    """What is wrong, and how much of the verdict is new."""
    for line in wrong:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    kept = f"{mutants - run} verdicts kept" if mutants > run else "no verdict kept"
    verdict = f"{len(wrong)} things are wrong" if wrong else "all as it must be"
    console.print(f"{mutants} mutants, {run} run, {kept}: {verdict}", markup=False, highlight=False)
