"""A depth-first search leaves a run at a state that it knows: that must hide no state, in the real scenarios too."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from palimpsest_model_check.explore.explore import run_once
from palimpsest_model_check.explore.scenarios import SCENARIOS
from palimpsest_model_check.explore.strategies import DepthFirst
from palimpsest_model_check.explore.threads import Thread


class Unpruned(DepthFirst):
    """Goes on from every state."""

    def _is_new(self, state, options):
        super()._is_new(state, options)
        return True


def search(strategy: DepthFirst, name: str) -> tuple[int, set[Hashable]]:
    """How many runs of a scenario there are with a strategy, and the states in which there was a choice."""
    runs = 0
    while True:
        run = run_once(SCENARIOS[name], strategy)
        assert run.finding is None, str(run.finding)
        runs += 1
        if not strategy.next_run():
            return runs, set(strategy._seen)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("copies-stall", 0),  # a device thread, and waits that run out
        ("delayed-read", 0),  # a prefetch thread
        ("idle-steps-drain", 1),
        ("shutdown-while-a-page-is-waited-for", 1),
        ("failure-of-a-flush", 1),
        ("two-ranks-and-a-copy", 1),  # a mirror, its ranks and their copy streams
    ],
)
def test_every_state_of_all_schedules_is_among_those_of_fewer_runs(name, bound):
    runs, states = search(DepthFirst(bound), name)
    every_run, every_state = search(Unpruned(bound), name)
    assert states == every_state
    assert runs < every_run


def test_what_a_thread_has_seen_says_the_same_however_often_it_is_asked():
    asked, silent = Thread("a", 0, daemon=False), Thread("a", 0, daemon=False)
    for what in ("one", "two"):
        asked.seen.append(what)
        silent.seen.append(what)
        place = asked.place()
    assert place == silent.place()
    silent.seen.append("three")
    assert place != silent.place()


def test_threads_that_are_done_are_alike_wherever_they_ended():
    early, late = Thread("a", 0, daemon=False), Thread("a", 0, daemon=False)
    late.seen.append("more")
    assert early.place() != late.place()
    early.done = late.done = True
    assert early.place() == late.place()
