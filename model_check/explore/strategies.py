"""Who goes on: every schedule within a bound of preemptions, random priorities, or a schedule that was saved."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from .threads import GOES, Option, Step, Thread

State = Callable[[], Hashable]


@dataclass
class _Branch:
    options: int
    taken: int = 0


class DepthFirst:
    """All schedules that cost at most `bound` preemptions (faults and time-outs count as such), one after the other;
    a state that was seen before, with as many left, is not gone on from, nor with fewer left whoever runs there."""

    def __init__(self, bound: int, *, fine: bool = True) -> None:
        self.fine = fine
        self._bound, self._left = bound, bound
        self.spends = bound > 0
        self._path: list[_Branch] = []
        self._depth = 0
        #: state -> who could go on at no cost there (None for nobody) -> the most preemptions that were left
        self._seen: dict[Hashable, dict[int | None, int]] = {}

    @property
    def states(self) -> int:
        """Distinct states in which there was a choice."""
        return len(self._seen)

    def choose(self, options: list[Option], position: int, state: State) -> Option | None:  # noqa: ARG002
        """The option that is next on this run's path."""
        allowed = [option for option in options if option.cost <= self._left]
        option = allowed[0]
        if len(allowed) > 1:
            if self._depth == len(self._path) and not self._is_new(state(), options):
                return None
            option = allowed[self._branch(len(allowed)).taken]
        self._spend(option.cost)
        return option

    def _spend(self, cost: int) -> None:
        self._left -= cost
        self.spends = self._left > 0

    def _is_new(self, state: Hashable, options: list[Option]) -> bool:
        """Whether there is a schedule from here on that an earlier run could not afford. Who has the turn decides what
        the next step costs, one at most, and nothing after it: one more that was left makes up for that."""
        current = options[0].thread.number if any(option.takes_over for option in options) else None
        known = self._seen.setdefault(state, {})
        if any(left - (who is not None and who != current) >= self._left for who, left in known.items()):
            return False
        known[current] = self._left
        return True

    def _branch(self, options: int) -> _Branch:
        if self._depth == len(self._path):
            self._path.append(_Branch(options))
        self._depth += 1
        branch = self._path[self._depth - 1]
        if branch.options != options:
            raise NondeterminismError(
                f"choice {self._depth} had {branch.options} options in one run and {options} in another that was "
                "the same up to there: something depends on time, addresses or a thread of its own"
            )
        return branch

    def next_run(self) -> bool:
        """Turn to the next path; False when there is none."""
        while self._path and self._path[-1].taken + 1 == self._path[-1].options:
            self._path.pop()
        self._depth, self._left, self.spends = 0, self._bound, self._bound > 0
        if not self._path:
            return False
        self._path[-1].taken += 1
        return True


class NondeterminismError(RuntimeError):
    """The same choices led to different runs."""


class RandomPriorities:
    """Probabilistic concurrency testing: threads have random priorities, the highest that can go on goes on, and at
    `changes` random choices the one that runs becomes the lowest. They are drawn among as many as the longest run had
    so far: the first run has none. Runs depend on the seed and the runs before them alone.

    Burckhardt et al., A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS 2010.
    """

    spends = fine = True

    def __init__(self, seed: int, changes: int = 3) -> None:
        self._seed, self._changes = seed, changes
        self._run, self._count, self._longest = -1, 0, 0
        self.next_run()

    def next_run(self) -> bool:
        """Draw anew; there is always a next run."""
        self._run += 1
        self._longest = max(self._longest, self._count)
        self._random = random.Random(self._seed * 1_000_003 + self._run)
        self._priority: dict[str, float] = {}
        points = range(self._changes) if self._longest else ()
        self._points = {self._random.randrange(self._longest) for _ in points}
        self._count = 0
        return True

    def choose(self, options: list[Option], position: int, state: State) -> Option | None:  # noqa: ARG002
        """The option of the thread with the highest priority; one time in twenty, a fault or a time-out of it."""
        best = max({option.thread.number: option.thread for option in options}.values(), key=self._rank)
        if self._count in self._points:
            self._priority[best.name] = -float(self._count)
            best = max({option.thread.number: option.thread for option in options}.values(), key=self._rank)
        self._count += 1
        own = [option for option in options if option.thread is best]
        rare = [option for option in options if option.how != GOES]
        return self._random.choice(rare) if rare and self._random.random() < 0.05 else own[0]

    def _rank(self, thread: Thread) -> float:
        if thread.name not in self._priority:
            self._priority[thread.name] = self._random.random()
        return self._priority[thread.name]


class Saved:
    """A schedule that was saved: who took each step, and how. Where that is not possible any more, since the code has
    changed, whoever comes first goes on."""

    spends = fine = True

    def __init__(self, turns: list[tuple[str, str]]) -> None:
        self._turns = turns

    def choose(self, options: list[Option], position: int, state: State) -> Option | None:  # noqa: ARG002
        """The option that was taken at this step."""
        turn = self._turns[position] if position < len(self._turns) else None
        return next((option for option in options if (option.thread.name, option.how) == turn), options[0])

    def missed(self, steps: list[Step]) -> int:
        """How many of its turns a run with it did not take, chosen or not; it may have gone on after the last."""
        other = sum((step.thread, step.how) != turn for step, turn in zip(steps, self._turns, strict=False))
        return other + max(0, len(self._turns) - len(steps))
