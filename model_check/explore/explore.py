"""Runs schedules of a scenario, one after the other, until there are no more or something is found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import CheckError
from .finding import Finding
from .scenario import Scenario
from .scheduler import Scheduler, Strategy
from .strategies import DepthFirst, RandomPriorities
from .surroundings import like_a_new_process, on_one_core
from .threads import Step


@dataclass(frozen=True)
class Run:
    """One schedule as it went."""

    scenario: Scenario
    steps: list[Step]
    finding: Finding | None
    #: whether the strategy left it, since it would go on as an earlier one did
    left: bool
    #: of its cache, as a trace's header has it
    config: dict[str, Any]


@dataclass
class Outcome:
    """What exploring a scenario gave."""

    scenario: Scenario
    #: the preemption bound; None for random schedules
    bound: int | None
    schedules: int = 0
    #: those that came to their end; the others were left, since they would have gone on as earlier ones did
    whole: int = 0
    states: int = 0
    #: whether every schedule within the bound was run
    exhausted: bool = False
    seconds: float = 0.0
    found: Run | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.found is None


Progress = Callable[[Outcome], None]

#: up to this bound a preemption may come also right after a lock is released, an event set or a job submitted
FINE_BOUND = 1


def run_once(scenario: Scenario, strategy: Strategy) -> Run:
    """One run of a scenario with a strategy's choices; all of its threads are gone afterwards."""
    scheduler = Scheduler(strategy, faults=scenario.faults, timeouts=scenario.timeouts)
    with like_a_new_process():
        script = scenario.script(scheduler, scenario.allows, scenario.error, scenario.slow_device, **scenario.options)
        scheduler.spawn("engine", lambda: script.engine(scenario.body))
        scheduler.run()
        if scheduler.finding is None and not scheduler.left:
            script.close()
    return Run(scenario, scheduler.steps, scheduler.finding, scheduler.left, script.watch.config)


def explore(
    scenario: Scenario, *, bound: int = 1, schedules: int | None = None, progress: Progress = lambda _: None
) -> Outcome:
    """Every schedule with no preemption, then with one, and so on up to `bound`, so that what is found takes as few as
    possible. `schedules` bounds their number."""
    with on_one_core():
        for now in range(bound + 1):
            outcome = Outcome(scenario, now)
            _go(outcome, DepthFirst(now, fine=now <= FINE_BOUND), schedules, progress)
            if outcome.found or not outcome.exhausted:
                break
    return outcome


def sample(scenario: Scenario, *, schedules: int, seed: int = 0, progress: Progress = lambda _: None) -> Outcome:
    """This many schedules of random priorities."""
    outcome = Outcome(scenario, None)
    with on_one_core():
        _go(outcome, RandomPriorities(seed), schedules, progress)
    return outcome


def _go(outcome: Outcome, strategy: DepthFirst | RandomPriorities, most: int | None, progress: Progress) -> None:
    start = time.monotonic()
    while most is None or outcome.schedules < most:
        run = run_once(outcome.scenario, strategy)
        outcome.schedules += 1
        outcome.whole += not run.left
        outcome.states = getattr(strategy, "states", 0)
        outcome.seconds = time.monotonic() - start
        progress(outcome)
        if run.finding is not None:
            outcome.found = run
            return
        if not strategy.next_run():
            if not outcome.whole:
                raise CheckError(f"{outcome.scenario.name}: no schedule came to its end: states are taken for equal")
            outcome.exhausted = True
            return
