"""Drives behaviors that TLC has simulated through the package's own threads, also of models that no machine goes
through."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..check import Simulation
from ..errors import CheckError
from ..explore.surroundings import on_one_core
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from .allowed import tell
from .behaviors import simulate
from .course import Course
from .telling import Start

#: how often TLC simulates on from where the code took another step that is allowed
ROUNDS = 4
#: how often TLC is asked in the end whether a behavior may be left as it was
MOST_LEFT = 20
#: behaviors for each of these places: where to begin is drawn, too
DRAWN = 2


@dataclass
class Simulated:
    """What driving the behaviors of a model gave."""

    model: Model
    courses: list[Course] = field(default_factory=list)
    #: schedules of the model that no engine has, which are left out
    unfit_schedules: int = 0
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Steps that the code has taken."""
        return sum(len(course.taken) for course in self.courses)

    @property
    def ended(self) -> int:
        """Behaviors that the code has followed to their ends."""
        return sum(course.over and course.wrong is None for course in self.courses)

    @property
    def taken(self) -> Counter[str]:
        """How often the code has taken each action of a thread."""
        return Counter(str(edge) for course in self.courses for edge in course.taken)

    @property
    def stops(self) -> Counter[tuple[str, str]]:
        """How often the code did not take a step that it was asked for, and what it did."""
        return Counter((str(edge), why) for course in self.courses for edge, why in course.stops)

    @property
    def wrong(self) -> list[str]:
        """What is not as the specification has it, a line each."""
        return [course.wrong for course in self.courses if course.wrong is not None]


def drive_simulated(
    model: Model,
    manifest: Manifest,
    tools: Toolchain,
    simulation: Simulation,
    *,
    rounds: int = ROUNDS,
    progress: Callable[[Simulated], None] = lambda _: None,
) -> Simulated:
    """Ask the code for each step of so many behaviors. Raises `CheckError` where TLC simulates none."""
    began = time.monotonic()
    done = Simulated(model)
    behaviors = simulate(model, manifest, tools, simulation)
    done.unfit_schedules = behaviors.unfit_schedules
    done.courses = [Course(number, model, behavior) for number, behavior in enumerate(behaviors.found, 1)]
    for turn in range(rounds + 1):
        courses = [course for course in done.courses if not course.over and course.left is None]
        if turn:
            again = replace(simulation, seed=simulation.seed + turn)
            _go_on(courses, model, manifest, tools, again)
        _follow(courses)
        _ask(done.courses, model, manifest, tools)
        done.seconds = time.monotonic() - began
        progress(done)
    for _ in range(MOST_LEFT):
        _ask(done.courses, model, manifest, tools)
    if left := [course for course in done.courses if course.left is not None]:
        says = f"behavior {left[0].number} of {model.name} was left {MOST_LEFT} times more, at last by {left[0].left}"
        raise CheckError(says)
    done.seconds = time.monotonic() - began
    return done


def _follow(courses: Sequence[Course]) -> None:
    with on_one_core():
        for course in courses:
            course.follow()


def _ask(courses: Sequence[Course], model: Model, manifest: Manifest, tools: Toolchain) -> None:
    """Where the code did something else than a behavior, ask TLC whether it may; then let it do so."""
    if left := [course for course in courses if course.left is not None]:
        tell(left, model, manifest, tools)
        _follow(left)


def _go_on(
    courses: Sequence[Course], model: Model, manifest: Manifest, tools: Toolchain, simulation: Simulation
) -> None:
    """Simulate on from where the courses are."""
    if not courses:
        return
    starts = [Start(course.number, course.text) for course in courses]
    many = replace(simulation, behaviors=DRAWN * len(starts))
    found = {behavior.first.of: behavior for behavior in simulate(model, manifest, tools, many, starts).found}
    for course in courses:
        if course.number in found:
            course.go_on(found[course.number].steps[: simulation.depth - len(course.taken)])
