"""Copies that fail in a random program, before a step is published and after."""

from __future__ import annotations

from typing import Any

from palimpsest.errors import WriteFailedError
from palimpsest.prefix_cache.interface import HIDDEN_KEY

from ..explore.memory import InjectedError
from ..explore.model import prefill
from .batch import NUM_BLOCKS, Draw, Step
from .program import KEYS, Program, WrongError, refused, scheduled


def _failing_once(owner: Any, name: str) -> None:
    """The next call of a method raises; it is then the method that it was."""
    real = getattr(owner, name)

    def fail(*_args: Any, **_options: Any) -> Any:
        setattr(owner, name, real)
        raise InjectedError(f"injected: {name}")

    setattr(owner, name, fail)


def fail_a_save(program: Program, draw: Draw) -> None:
    """A copy of a save fails before the step is published: nothing of it is left, and the next save works."""
    step = program.scheduler.step(draw)
    program.begin(step)
    if not step.parts:
        return
    program.collect()
    while len(program.saved) > 1:
        program.cache.discard_step(program.saved.popleft().step_id)
    copies = program.cache._copies
    name = ("freeze_into", "clone")[draw(2)]
    _failing_once(copies, name)
    live = program.live_rows(step.parts, list(KEYS))
    count = int(program.view.slots.numel())
    mm = {key: live[key] for key in KEYS if key != HIDDEN_KEY}
    try:
        program.hand_over(live[HIDDEN_KEY], mm, count)
    except InjectedError:
        program.done[f"failed {name}"] += 1
    else:
        raise WrongError(f"a save whose {name} fails was taken")
    program.save(step.parts, [HIDDEN_KEY, "k", "d"])


def fail_a_write(program: Program, draw: Draw) -> None:
    """A pool write fails after the step was published: the cache serves nothing from then on, and says so."""
    program.collect()
    while len(program.saved) > 1:
        program.cache.discard_step(program.saved.popleft().step_id)
    program.settle()
    program.lost = True
    _failing_once(program.cache._pool, "write")
    fresh = Step({"lost": prefill([draw(NUM_BLOCKS)], 1)})
    try:
        program.begin(fresh)
        program.save(fresh.parts, [HIDDEN_KEY])
        program.settle()
    except (InjectedError, WriteFailedError):
        pass
    else:
        raise WrongError("a write was lost, and nobody was told")
    refused(lambda: program.cache.new_step_starts(scheduled(Step())), WriteFailedError)
    for saved in program.saved:
        refused(lambda: program.cache.materialize(saved.step_id, []), WriteFailedError)  # noqa: B023  called at once
    program.done["lost write"] += 1
