"""How mutants of the code are tried and shown: a line for each as it comes, and a table of what caught each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..check import usable_cores
from ..errors import CheckError
from .code import CodeMutant, load_code_mutants
from .code_trial import Trial, try_all


def select(names: Sequence[str]) -> list[CodeMutant]:
    """The mutants with one of `names` in theirs, or all. Raises `CheckError`."""
    mutants = list(load_code_mutants().values())
    found = [each for each in mutants if not names or any(name in each.name for name in names)]
    if not found:
        raise CheckError(f"no code mutant with {' or '.join(names)} in its name; --code --list shows them")
    return found


def run_code_mutants(names: Sequence[str], jobs: int | None, console: Console) -> bool:
    """Try them and show the table; whether each is caught by the property that the catalogue names."""
    mutants = select(names)
    with console.status(f"{len(mutants)} mutants of the code") as status:

        def ended(trial: Trial) -> None:
            status.update(f"{trial.mutant.name}: {trial.by or 'survives'}")
            if not console.is_terminal:
                line = f"{trial.mutant.name}: {trial.by or 'survives'}, {trial.schedules} schedules"
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        trials = try_all(mutants, jobs or usable_cores(), ended)
    console.print(trial_table(trials))
    wrong = [f"{trial.mutant.name} {trial.wrong}" for trial in trials if trial.wrong]
    for line in wrong:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    properties = Counter(trial.by for trial in trials if trial.caught)
    caught = sum(properties.values())
    console.print(
        f"{caught} of {len(trials)} caught, by {len(properties)} properties and kinds of finding; "
        f"{sum(bool(trial.alarm) for trial in trials)} false alarms on the unchanged code, which takes "
        f"{sum(trial.caught is not None and not trial.missed for trial in trials)} of the schedules turn by turn",
        markup=False,
        highlight=False,
    )
    return not wrong


COLUMNS = ("mutant", "caught by", "property", "at event", "schedules", "seconds", "says")


def cells(trial: Trial) -> tuple[str, ...]:
    """A line of the table."""
    caught = trial.caught
    by = f"{caught.scenario}, {'replay' if caught.kind == 'rejected' else caught.kind}" if caught else "SURVIVES"
    at = caught.event if caught else ""
    return (
        trial.mutant.name, by, trial.by, at, f"{trial.schedules:,}", f"{trial.seconds:.1f}", trial.mutant.says,
    )  # fmt: skip


def trial_table(trials: Sequence[Trial]) -> Table:
    """A line for each mutant: the scenario and the way in which it was caught, the property, and the event."""
    table = Table(title=f"{len(trials)} mutants of the code")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("schedules", "seconds") else "left", overflow="fold")
    for trial in trials:
        table.add_row(*map(escape, cells(trial)), style="bold red" if trial.wrong else "")
    return table


def mutant_list(mutants: Sequence[CodeMutant]) -> Table:
    """The mutants there are, and what must catch each."""
    table = Table(title=f"{len(mutants)} mutants of the code")
    for name in ("mutant", "where", "breaks", "says"):
        table.add_column(name, overflow="fold")
    for each in mutants:
        where = ", ".join(dict.fromkeys(module for module, _, _ in each.edits))
        table.add_row(each.name, where, each.breaks, escape(each.says))
    return table
