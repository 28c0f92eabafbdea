"""Trying mutants of the code: each in a process of its own, by exploring schedules and replaying every event."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from .code import CodeMutant, Patched

SCHEDULES = 5_000

#: a thread, how it goes on, and for how many steps
Turn = tuple[str, str, int]


@dataclass(frozen=True)
class Caught:
    """The schedule that caught a mutant."""

    scenario: str
    #: the kind of the finding: "rejected" is the replay's verdict
    kind: str
    properties: tuple[str, ...]
    says: str
    #: the last event of the run: its number, its thread and its action
    event: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Trial:
    """What came of a mutant."""

    mutant: CodeMutant
    caught: Caught | None
    schedules: int
    seconds: float
    #: what the same schedule finds in the unchanged code; empty for nothing
    alarm: str = ""
    #: turns of the schedule that the unchanged code does not take: it is then another run that finds nothing
    missed: int = 0

    @property
    def by(self) -> str:
        """The property that caught it, as the catalogue expects it where it is among several; else the finding."""
        if self.caught is None:
            return ""
        found = self.caught.properties
        return self.mutant.breaks if self.mutant.breaks in found else ", ".join(found) or self.caught.kind

    @property
    def wrong(self) -> str:
        """What is not as it must be, or nothing."""
        if self.caught is None:
            return f"survives {self.schedules:,} schedules"
        if self.by != self.mutant.breaks:
            return f"caught by {self.by}, and {self.mutant.breaks} is expected: {self.caught.says}"
        return f"the unchanged code is blamed, too: {self.alarm}" if self.alarm else ""


def try_all(mutants: Sequence[CodeMutant], jobs: int, ended: Callable[[Trial], None]) -> list[Trial]:
    """A trial of each mutant, in their order; `ended` is told of each as it comes. Raises `ManifestError` first where
    a text to replace is not there exactly once."""
    changed = [(mutant, mutant.texts()) for mutant in mutants]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "numpy", "transitions"])
    found = {}
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(_try, mutant, texts) for mutant, texts in changed]
        try:
            for future in as_completed(futures):
                trial = _blame(future.result())
                found[trial.mutant.name] = trial
                ended(trial)
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[mutant.name] for mutant in mutants]


def _try(mutant: CodeMutant, texts: dict[str, str]) -> Trial:
    """In a process that has not imported the package's modules yet."""
    Patched(texts).install()
    from ..explore.explore import explore
    from ..explore.saved import Schedule
    from ..explore.scenarios import SCENARIOS

    start, schedules = time.monotonic(), 0
    for scenario in SCENARIOS.select(mutant.scenarios):
        outcome = explore(scenario, bound=mutant.bound, schedules=SCHEDULES)
        schedules += outcome.schedules
        if outcome.found is not None and (finding := outcome.found.finding) is not None:
            run = outcome.found
            events = [(step.thread, action) for step in run.steps for action in step.actions]
            last = f"{len(events)} {' '.join(events[-1])}" if events else "none"
            turns = tuple(Schedule.of(run).turns)
            caught = Caught(scenario.name, finding.kind, finding.properties, finding.says, last, turns)
            return Trial(mutant, caught, schedules, time.monotonic() - start)
    return Trial(mutant, None, schedules, time.monotonic() - start)


def _blame(trial: Trial) -> Trial:
    """The trial, with what its schedule finds in the unchanged code: it must be nothing."""
    from dataclasses import replace

    from ..explore.saved import replay

    if trial.caught is None:
        return trial
    run, missed = replay(trial.caught.scenario, list(trial.caught.turns))
    return replace(trial, alarm="" if run.finding is None else str(run.finding), missed=missed)
