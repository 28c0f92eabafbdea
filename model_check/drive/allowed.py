"""Asks TLC what the specification lets a thread do where the code has left a behavior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..dot import dump_dot
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from .behaviors import Step
from .course import Course
from .graph import Turn
from .place import MOST_UNSEEN, UNSEEN
from .telling import DID, Start, prepare_told, spec_name
from .who import thread_alone


def tell(courses: Sequence[Course], model: Model, manifest: Manifest, tools: Toolchain) -> None:
    """Tell each course that the code has left all that its thread may do there. One run of TLC."""
    turns = {course.number: turn for course in courses if (turn := course.left) is not None}
    starts = [Start(course.number, course.text) for course in courses]
    # what bounds a model is not what the specification says
    free = replace(model, constraints=(), action_constraints=(), deadlock=False)
    dot = dump_dot(free, manifest, tools, partial(prepare_told, starts=starts, only=_only(turns)))
    steps = {name: Step.read(text) for name, text in dot.states.items()}
    for course in courses:
        mine = {name: step for name, step in steps.items() if step.of == course.number}
        (first,) = (name for name, step in mine.items() if step.place == 0)
        ways = sorted(
            {(source, target) for source, _, target in dot.edges if source in mine and source != target},
            key=lambda way: (mine[way[1]].place, way),
        )
        course.tell(turns[course.number], first, [(source, target, mine[target]) for source, target in ways])


def _only(turns: dict[int, Turn]) -> str:
    """The action of a turn, behind steps of the same thread that leave no event."""
    unseen = _names(UNSEEN)
    cases = "\n    [] ".join(f"{DID}.of = {number} -> {{{', '.join(_whats(turn))}}}" for number, turn in turns.items())
    return (
        f'{DID}\'.step <= {MOST_UNSEEN + 1} /\\ {DID}.action \\in {{"Init", {unseen}}}'
        f" /\\ <<{DID}'.action, {DID}'.by>> \\in (CASE {cases})"
    )


def _whats(turn: Turn) -> list[str]:
    return [
        f'<<"{spec_name(action)}", "{"" if thread_alone(action) == turn.thread else turn.thread}">>'
        for action in sorted(UNSEEN | {turn.action})
    ]


def _names(actions: frozenset[str]) -> str:
    return ", ".join(f'"{spec_name(action)}"' for action in sorted(actions))
