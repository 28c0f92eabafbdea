"""Scenarios side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, NamedTuple

from .explore import Outcome, Progress, explore, sample
from .saved import Schedule, replay
from .scenario import Scenario
from .scenarios import SCENARIOS
from .surroundings import keep_to_one_core


class Search(NamedTuple):
    """How scenarios are explored: depth first up to a bound of preemptions, or at random where that is None."""

    bound: int | None
    schedules: int | None
    seed: int

    def run(self, scenario: Scenario, progress: Progress = lambda _: None) -> Outcome:
        """Explore one scenario."""
        if self.bound is None:
            return sample(scenario, schedules=self.schedules or 1000, seed=self.seed, progress=progress)
        return explore(scenario, bound=self.bound, schedules=self.schedules, progress=progress)


def explore_all(
    scenarios: Sequence[Scenario], search: Search, jobs: int, progress: Progress, ended: Callable[[Outcome], None]
) -> list[Outcome]:
    """The outcomes in the order of the scenarios; `ended` is told of each as it comes. One scenario, or one job, is
    run in this process, and only then is there `progress` within a scenario."""
    if jobs == 1 or len(scenarios) == 1:
        outcomes = {}
        for scenario in scenarios:
            outcomes[scenario.name] = search.run(scenario, progress)
            ended(outcomes[scenario.name])
    else:
        outcomes = _side_by_side(scenarios, search, jobs, ended)
    return [outcomes[scenario.name] for scenario in scenarios]


def _side_by_side(
    scenarios: Sequence[Scenario], search: Search, jobs: int, ended: Callable[[Outcome], None]
) -> dict[str, Outcome]:
    outcomes = {}
    with _pool(jobs) as pool:
        for future in as_completed([pool.submit(_work, scenario.name, search) for scenario in scenarios]):
            name, fields, found = future.result()
            outcome = outcomes[name] = Outcome(SCENARIOS[name], **fields)
            if found is not None:
                outcome.found, _ = replay(name, found.turns)
            ended(outcome)
    return outcomes


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=keep_to_one_core, initargs=(context.Value("i"),))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _work(name: str, search: Search) -> tuple[str, dict[str, Any], Schedule | None]:
    """One scenario's outcome, in what can be sent to another process."""
    outcome = search.run(SCENARIOS[name])
    fields = {key: getattr(outcome, key) for key in ("bound", "schedules", "whole", "states", "exhausted", "seconds")}
    return name, fields, None if outcome.found is None else Schedule.of(outcome.found)
