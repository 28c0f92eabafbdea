"""Behaviors that TLC simulates: read from the files that it writes, with the action and the thread of each step."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from palimpsest.actions import ACTIONS

from ..check import Simulation
from ..counterexample import snake_case
from ..errors import CheckError
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from ..output import Kind
from ..tlc import Run, run_tlc
from ..values import Text
from .graph import read_state
from .spec_state import State
from .telling import DID, Start, prepare_told
from .who import DATA, thread_alone

_FILE = re.compile(r"behavior_\d+_(\d+)")
_STATE = re.compile(r"^STATE_(\d+) ==\s*\n(.*?)\n\n", re.MULTILINE | re.DOTALL)
_DID = re.compile(rf"^/\\ {DID} = .*?(?=^/\\ |\Z)", re.MULTILINE | re.DOTALL)
_INIT = "init"


class Step(NamedTuple):
    """A step and what it leads to, also as TLC writes it; `init`, of nobody, for a state in which behaviors begin."""

    action: str
    thread: str
    #: the number of the start that it is behind, and how many steps
    of: int
    place: int
    state: State
    text: str

    @classmethod
    def read(cls, text: str) -> Step:
        """The step that a told state says it comes from. Raises `CheckError`."""
        try:
            values = read_state(text)
            did = values[DID]
            name, by, of, place = (did[field] for field in ("action", "by", "of", "step"))
        except (KeyError, TypeError) as error:
            raise CheckError(f"a state that does not say which step led to it: {error}") from error
        if unread := [name for name, value in values.items() if isinstance(value, Text)]:
            raise CheckError(f"a state whose {', '.join(unread)} cannot be read")
        action = snake_case(name)
        if action not in ACTIONS and action not in DATA and action != _INIT:
            raise CheckError(f"an action {action} that the package does not know")
        return cls(action, by or thread_alone(action), of, place, State(values), _DID.sub("", text).strip())


class Behavior(NamedTuple):
    """A behavior: its first state, and the steps from there."""

    first: Step
    steps: tuple[Step, ...]


class Behaviors(NamedTuple):
    """Behaviors; and where they are from a model's initial states, how many of its schedules no engine has: they are
    left out."""

    found: list[Behavior]
    unfit_schedules: int


def simulate(
    model: Model, manifest: Manifest, tools: Toolchain, simulation: Simulation, starts: Sequence[Start] = ()
) -> Behaviors:
    """Behaviors of `model`, from its initial states or from `starts`: the same ones for the same seed. Raises
    `CheckError` where TLC does not come to its end, or has written what cannot be read."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-behaviors-") as folder:
        room, out = Path(folder, "spec"), Path(folder, "out")
        room.mkdir()
        out.mkdir()
        module, config = prepare_told(model, manifest, room, starts)
        options = simulation.written(out / "behavior")
        # one worker: with more, the seed does not say which behaviors they are
        result = run_tlc(Run(module, config, 1, model.heap, False, model.limit_s, options), tools)
        if result.kind is not Kind.OK:
            raise CheckError(f"model {model.name}: TLC simulates nothing: {result.verdict}; {result.explanation}")
        return Behaviors(read_behaviors(out), int(result.said[0]) if result.said else 0)


def read_behaviors(folder: Path) -> list[Behavior]:
    """The behaviors in the files of a folder, in TLC's order. Raises `CheckError` for what cannot be read."""
    files = {int(found[1]): path for path in folder.iterdir() if (found := _FILE.fullmatch(path.name))}
    return [read_behavior(files[number]) for number in sorted(files)]


def read_behavior(path: Path) -> Behavior:
    """The behavior in a file that TLC wrote. Raises `CheckError`, with the file's name, where it is not whole."""
    text = path.read_text(encoding="utf-8")
    found = _STATE.findall(text)
    steps = []
    for place, (number, state) in enumerate(found):
        try:
            step = Step.read(state)
        except CheckError as error:
            raise CheckError(f"{path.name}, state {number}: {error}") from error
        if (int(number), step.place) != (place + 1, place):
            raise CheckError(f"{path.name}: state {number} is the one after {step.place} steps, and not after {place}")
        steps.append(step)
    if not steps or not text.rstrip().endswith("===="):
        raise CheckError(f"{path.name}: no end after {len(steps)} states")
    if names := {name for step in steps for name in step.state.names ^ steps[0].state.names}:
        raise CheckError(f"{path.name}: not every state has {', '.join(sorted(names))}")
    return Behavior(steps[0], tuple(steps[1:]))
