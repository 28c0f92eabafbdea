"""Calls with bad input in a random program: each is refused, nothing of it is left, and the next call works."""

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
)
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig

from ..explore.digest import digest
from ..explore.model import BLOCK_SIZE, WIDTH
from .batch import NUM_BLOCKS, Draw, Step
from .program import BUDGET_BYTES, Program, WrongError, refused


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
        refused(lambda: program.hand_over(rows, {}, 1), BadStepError)


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
    """The ways in which a save of `count` tokens can be wrong."""
    rows, slots = torch.zeros(count, WIDTH), program.view.slots
    nowhere, big = rows.to("meta"), torch.zeros(count, BUDGET_BYTES)

    def bad(hidden: Any, *, tokens: Any = count, padded: Any = 0, **mm: torch.Tensor) -> Callable[[], None]:
        errors = BadStepError, BudgetExceededError, KeyLayoutError
        return lambda: refused(lambda: program.hand_over(hidden, mm, tokens, padded), *errors)

    cases = {
        "fewer rows than tokens": bad(rows[1:]),
        "more tokens than scheduled": bad(rows, tokens=count + 1),
        "less padding than tokens": bad(rows, padded=count - 1 or -1),
        "half a count of tokens": bad(rows, padded=count + 0.5),
        "no rows": bad(None),
        "rows in one dimension": bad(rows[:, 0]),
        "sparse rows": bad(rows.to_sparse()),
        "rows without memory": bad(nowhere),
        "a key without memory": bad(rows, new=nowhere),
        "a value without memory": bad(rows, new=nowhere[0]),
        "more than the budget": bad(rows, d=big),
        "slots in a list": _with_slots(program, list(range(count)), rows),
        "slots that there are not": _with_slots(program, slots + 10**6, rows),
        "slots of another dtype": _with_slots(program, slots.to(torch.int32), rows),
    }
    if count > 1:
        cases["a slot twice"] = _with_slots(program, slots[:1].repeat(count), rows)
    if program.cache._pool.has_key(HIDDEN_KEY):
        cases["another dtype"] = bad(rows.to(torch.float64))
        cases["another width"] = bad(torch.zeros(count, WIDTH + 1))
    return cases


def _with_slots(program: Program, slots: Any, rows: torch.Tensor) -> Callable[[], None]:
    def call() -> None:
        right, program.view.slots = program.view.slots, slots
        try:
            refused(lambda: program.hand_over(rows, {}, rows.shape[0]), BadStepError)
        finally:
            program.view.slots = right

    return call
