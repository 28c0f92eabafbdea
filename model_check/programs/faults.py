"""What goes wrong in a random program: calls with bad input, and copies that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from palimpsest.errors import (
    BadStepError,
    BudgetExceededError,
    ConfigRefusedError,
    KeyLayoutError,
    StepConsumedError,
    WriteFailedError,
)
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig

from ..explore.digest import digest
from ..explore.memory import InjectedError
from ..explore.model import BLOCK_SIZE, WIDTH, prefill
from .batch import NUM_BLOCKS, Draw, Step
from .program import BUDGET_BYTES, KEYS, Program, WrongError, refused, scheduled


def fingerprint(program: Program) -> bytes:
    """A digest of all that the cache knows and holds, when all is quiet."""
    cache, controller = program.cache, program.cache._controller
    slots = cache._slot_status
    return digest(
        [
            slots.tenant, slots._block_tenant,
            [(key, slots.get_slot_status(key)) for key in slots.keys],
            [(tid, task.state.name) for tid, task in controller._tasks.items()],
            list(controller._queue_hi), list(controller._queue_lo), controller._staged_bytes,
            controller.staging.holds(), list(cache._step_ctxs), [read.rid for read in cache._pending_reads],
            cache._request_tasks.live, sorted(cache._request_tasks.deferred),
        ]
    )  # fmt: skip


# ---------------------------------------------------------------- bad input


def _new(**fields: Any) -> Any:
    """A scheduler's output with one new request, in which something is wrong."""
    request = {"req_id": "new", "num_computed_tokens": 0, "block_ids": [[0]], **fields}
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(**request)], finished_req_ids=set(), num_scheduled_tokens={"new": 1}
    )


BAD_STEPS: dict[str, Any] = {
    "hit off a block boundary": _new(num_computed_tokens=1, block_ids=[[0, 1]]),
    "negative hit": _new(num_computed_tokens=-BLOCK_SIZE),
    "block that there is not": _new(block_ids=[[NUM_BLOCKS]]),
    "negative block": _new(block_ids=[[-1]]),
    "hit on a block that there is not": _new(num_computed_tokens=BLOCK_SIZE, block_ids=[[NUM_BLOCKS, 0]]),
    "hit on more blocks than it has": _new(num_computed_tokens=2 * BLOCK_SIZE, block_ids=[[0]]),
    "hit on one block twice": _new(num_computed_tokens=2 * BLOCK_SIZE, block_ids=[[0, 0, 1]]),
    "new twice": SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="new", num_computed_tokens=0, block_ids=[[0]])] * 2,
        finished_req_ids=set(), num_scheduled_tokens={"new": 1},
    ),
    "half a block": _new(block_ids=[[0.5]]),
    "a block by name": _new(block_ids=[["0"]]),
    "half a token": _new(num_computed_tokens=0.5),
    "no tokens": _new(num_computed_tokens=None),
    "half a count": SimpleNamespace(scheduled_new_reqs=[], finished_req_ids=set(), num_scheduled_tokens={"a": 0.5}),
    "negative count": SimpleNamespace(scheduled_new_reqs=[], finished_req_ids=set(), num_scheduled_tokens={"a": -1}),
}  # fmt: skip

BAD_CONFIGS: dict[str, dict[str, Any]] = {
    "no blocks": {"num_blocks": 0},
    "a block of no tokens": {"block_size": 0},
    "half a page": {"staging_depth": 0.5},
    "no capacity": {"staging_capacity_tokens": -1},
    "no end of waiting": {"staging_claim_timeout_s": float("inf")},
    "no budget": {"gpu_staging_bytes": True},
}

Wrong = Callable[[Program], None]


def _bad_step(output: Any) -> Wrong:
    return lambda program: refused(lambda: program.cache.new_step_starts(output), BadStepError)


def _bad_config(fields: dict[str, Any]) -> Wrong:
    config = PrefixCacheConfig(1, 1)
    return lambda _: refused(lambda: replace(config, **fields), ConfigRefusedError)


def _consume_unknown(program: Program) -> None:
    refused(lambda: program.cache.materialize(10**9, []), StepConsumedError)
    refused(lambda: program.cache.discard_step(10**9), StepConsumedError)


def _ask_for_strangers(program: Program) -> None:
    if program.saved:
        step_id = program.saved[0].step_id
        refused(lambda: program.cache.materialize(step_id, ["nobody"]), BadStepError)


def _save_without_a_step(program: Program) -> None:
    if program.cache._begun is None:
        rows = torch.zeros(1, WIDTH)
        refused(lambda: _save(program, rows, {}, 1), BadStepError)


def _contradict_the_policy(_: Program) -> None:
    refused(lambda: ModelCachePolicy(deferred_keys=frozenset({"k"}), per_request_keys=frozenset({"k"})),
            ConfigRefusedError)  # fmt: skip


def _register_no_policy(program: Program) -> None:
    refused(lambda: program.cache.register_policy(None), ConfigRefusedError)  # type: ignore[arg-type]  # on purpose


#: what is refused and changes nothing, between two steps
BAD_CALLS: dict[str, Wrong] = {
    **{name: _bad_step(output) for name, output in BAD_STEPS.items()},
    **{name: _bad_config(fields) for name, fields in BAD_CONFIGS.items()},
    "a step that there is not": _consume_unknown,
    "a request that the step has not": _ask_for_strangers,
    "a save without a step": _save_without_a_step,
    "a key deferred and per request": _contradict_the_policy,
    "no policy": _register_no_policy,
}


def call_badly(program: Program, draw: Draw) -> None:
    """One call with bad input: it raises, nothing has changed, and the program goes on."""
    program.settle()
    if program.cache._begun is not None:
        program.begin(Step())  # a begun step is dropped by the next begin, good or bad
        program.settle()
    name = list(BAD_CALLS)[draw(len(BAD_CALLS))]
    _changes_nothing(program, name, lambda: BAD_CALLS[name](program))


def _changes_nothing(program: Program, name: str, call: Callable[[], None]) -> None:
    before = fingerprint(program)
    call()
    if fingerprint(program) != before:
        raise WrongError(f"{name}: refused, and something has changed")
    program.done[name] += 1


def _save(program: Program, hidden: torch.Tensor | None, mm: dict[str, Any], count: Any, padded: Any = 0) -> None:
    program.cache.save_outputs(hidden, mm, num_tokens_unpadded=count, num_tokens_padded=padded or count)


def save_badly(program: Program, draw: Draw, name: str | None = None) -> None:
    """A step whose save is refused in one way or another (or as `name` says, where it has the tokens for that), and is
    then saved as it should be."""
    step = program.scheduler.step(draw)
    program.begin(step)
    count = int(program.view.slots.numel())
    if not count:
        return
    program.collect()
    while len(program.saved) > 1:
        program.cache.discard_step(program.saved.popleft().step_id)
    program.settle()
    wrong = _bad_saves(program, count)
    name = name or list(wrong)[draw(len(wrong))]
    if name in wrong:
        _changes_nothing(program, name, wrong[name])
    program.save(step.parts, [HIDDEN_KEY, "d"])


def _bad_saves(program: Program, count: int) -> dict[str, Callable[[], None]]:
    rows = torch.zeros(count, WIDTH)
    big = torch.zeros(count, BUDGET_BYTES)
    known = program.cache._pool.has_key(HIDDEN_KEY)
    cases: dict[str, Callable[[], None]] = {
        "fewer rows than tokens": lambda: refused(lambda: _save(program, rows[1:], {}, count), BadStepError),
        "more tokens than scheduled": lambda: refused(lambda: _save(program, rows, {}, count + 1), BadStepError),
        "less padding than tokens": lambda: refused(lambda: _save(program, rows, {}, count, count - 1 or -1),
                                                    BadStepError),
        "rows without memory": lambda: refused(lambda: _save(program, rows.to("meta"), {}, count), BadStepError),
        "a key without memory": lambda: refused(lambda: _save(program, rows, {"new": rows.to("meta")}, count),
                                                BadStepError),
        "a value without memory": lambda: refused(lambda: _save(program, rows, {"new": rows[0].to("meta")}, count),
                                                  BadStepError),
        "sparse rows": lambda: refused(lambda: _save(program, rows.to_sparse(), {}, count), BadStepError),
        "no rows": lambda: refused(lambda: _save(program, None, {}, count), BadStepError),
        "rows in one dimension": lambda: refused(lambda: _save(program, rows[:, 0], {}, count), BadStepError),
        "half a count of tokens": lambda: refused(lambda: _save(program, rows, {}, count, count + 0.5), BadStepError),
        "slots in a list": lambda: _with_slots(program, list(range(count)), rows, count),
        "slots that there are not": lambda: _with_slots(program, program.view.slots + 10**6, rows, count),
        "slots of another dtype": lambda: _with_slots(program, program.view.slots.to(torch.int32), rows, count),
        "more than the budget": lambda: refused(lambda: _save(program, rows, {"d": big}, count), BudgetExceededError,
                                                KeyLayoutError),
    }  # fmt: skip
    if count > 1:
        slots = program.view.slots[:1].repeat(count)
        cases["a slot twice"] = lambda: _with_slots(program, slots, rows, count)
    if known:
        double, wide = rows.to(torch.float64), torch.zeros(count, WIDTH + 1)
        cases["another dtype"] = lambda: refused(lambda: _save(program, double, {}, count), KeyLayoutError)
        cases["another width"] = lambda: refused(lambda: _save(program, wide, {}, count), KeyLayoutError)
    return cases


def _with_slots(program: Program, slots: Any, rows: torch.Tensor, count: int) -> None:
    right, program.view.slots = program.view.slots, slots
    try:
        refused(lambda: _save(program, rows, {}, count), BadStepError)
    finally:
        program.view.slots = right


# ---------------------------------------------------------------- copies that fail


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
        _save(program, live[HIDDEN_KEY], mm, count)
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
