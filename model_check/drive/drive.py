"""Drives the edges of a graph through the package's own threads, run after run, until each was asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..explore.finding import Finding
from ..explore.surroundings import like_a_new_process, on_one_core
from .code_state import CodeState
from .coverage import Coverage
from .follow import Follower
from .graph import Edge, Graph, Plan, Turn
from .runner import Runner
from .sizes import Sizes

#: so many runs one after the other that settle no further edge are the last ones
IDLE = 60


@dataclass(frozen=True)
class DrivenRun:
    """One run: the edges that the code took, and what was found, if anything."""

    start: str
    taken: tuple[Edge, ...]
    errors: Counter[str]
    finding: Finding | None
    #: where the code did what the plan's graph does not tell of
    left: Turn | None = None


@dataclass
class Driven:
    """What driving a graph gave."""

    graph: Graph
    coverage: Coverage
    runs: int = 0
    actions: int = 0
    seconds: float = 0.0
    #: errors that calls ended with, by thread and kind
    errors: Counter[str] = field(default_factory=Counter)
    found: DrivenRun | None = None

    #: whether the search came to its end by itself
    ended: bool = False

    @property
    def missing(self) -> list[str]:
        """Actions of a thread that the code was asked for, and never did anywhere."""
        if not self.ended:
            return []
        driven = {str(edge) for edge in self.coverage.driven}
        return sorted({str(edge) for edge in self.coverage.never} - driven)

    @property
    def wrong(self) -> list[str]:
        """What is not as the specification has it, a line each."""
        found = [str(self.found.finding)] if self.found else []
        return found + [f"the code never does {each}" for each in self.missing]


def run_once(plan: Plan, start: str) -> DrivenRun:
    """One run from an initial state to where no edge is left to ask for; all of its threads are gone afterwards."""
    follower = Follower(plan, start)
    with like_a_new_process():
        runner = Runner(follower, Sizes.of(plan.graph.model))
        follower.begin(CodeState(runner))
        follower.scheduler.run()
    return DrivenRun(start, tuple(follower.taken), follower.errors, follower.scheduler.finding, follower.left)


def drive(graph: Graph, *, runs: int | None = None, progress: Callable[[Driven], None] = lambda _: None) -> Driven:
    """Ask the code for every edge of `graph`, in at most `runs` runs; stops at the first difference."""
    done = Driven(graph, Coverage(graph))
    began = time.monotonic()
    idle = 0
    with on_one_core():
        while runs is None or done.runs < runs:
            start = done.coverage.start()
            if start is None or idle == IDLE:
                done.ended = True
                break
            settled = done.coverage.settled
            run = run_once(done.coverage, start)
            done.runs += 1
            idle = idle + 1 if done.coverage.settled == settled else 0
            done.actions += len(run.taken)
            done.errors += run.errors
            done.seconds = time.monotonic() - began
            progress(done)
            if run.finding is not None:
                done.found = run
                break
    return done
