"""One step on its way from `new_step_starts` to its consumption, and the checks on what it is made of."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from palimpsest.errors import BadStepError, StepConsumedError
from palimpsest.prefix_cache.copies import LandedEvent
from palimpsest.prefix_cache.interface import PrefixCacheConfig
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.records import Rows

IntArray = np.ndarray

#: request -> (hit tokens, the blocks that hold them)
Hits = dict[str, tuple[int, list[int]]]
Reads = dict[str, dict[str, PendingRead]]
Prefetches = dict[str, dict[str, "Future[torch.Tensor]"]]


class GroupView(Protocol):
    """What the manager needs of the runner's batch."""

    block_size: int

    def batch_req_ids(self) -> list[str]: ...
    def step_slots_cpu(self, req_ids: list[str], num_scheduled: Mapping[str, int]) -> torch.Tensor: ...


@dataclass
class BegunStep:
    """A step between `new_step_starts` and the publish of its save."""

    num_scheduled: dict[str, int]
    hits: Hits
    hit_slots: dict[str, IntArray]
    reads: Reads = field(default_factory=dict)
    prefetches: Prefetches = field(default_factory=dict)
    #: tokens of the prompts that came with the step
    query_tokens: int = 0


class BatchShape:
    """The requests of a step and how many tokens each has; steps of an unchanged batch share one."""

    def __init__(self, req_order: list[str], num_scheduled: Mapping[str, int]) -> None:
        self.req_order = req_order
        self.counts = [num_scheduled.get(req_id, 0) for req_id in req_order]
        #: request i has rows bounds[i] to bounds[i + 1]
        self.bounds = [0, *accumulate(self.counts)]
        #: tokens of the step
        self.count = self.bounds[-1]
        #: request -> its number in the batch
        self.place = dict(zip(req_order, range(len(req_order)), strict=True))
        #: the requests that have rows: number i of them has rows marks[i] to marks[i + 1]
        self.names = [req_id for req_id, count in zip(req_order, self.counts, strict=True) if count]
        row_counts = [count for count in self.counts if count]
        self.marks = [0, *accumulate(row_counts)]
        #: of each row, the number of its request among those that have rows
        self.row_owners: IntArray = np.repeat(np.arange(len(row_counts), dtype=np.int64), row_counts)
        self._num_scheduled = num_scheduled

    def fits(self, req_order: list[str], num_scheduled: Mapping[str, int]) -> bool:
        """Whether a batch has these requests with these token counts."""
        return req_order == self.req_order and num_scheduled == self._num_scheduled

    def shares(self) -> Iterator[tuple[str, int, int]]:
        """Each request that has rows: its id, its first row, and the row after its last."""
        return zip(self.names, self.marks, self.marks[1:], strict=False)

    def per_row(self, values: list[int]) -> IntArray:
        """`values`, one for each request that has rows, repeated for each of its rows."""
        return np.array(values, dtype=np.int64).take(self.row_owners)

    def span(self, req_id: str) -> tuple[int, int]:
        """First row of a request in this step, and the row after its last."""
        number = self.place[req_id]
        return self.bounds[number], self.bounds[number + 1]


class StepRows(NamedTuple):
    """A step's rows: whose they are, and the slots they go to."""

    shape: BatchShape
    slots: torch.Tensor
    #: the slots as an array, which shares its memory with the tensor
    at: IntArray


class StepCopies(NamedTuple):
    """Where a step's rows land on the host: its staging page, and when they have landed."""

    staging_slot: int
    views: Rows
    event: LandedEvent | None


@dataclass
class StepContext:
    """A saved step, waiting to be consumed exactly once."""

    step_id: int
    rows: StepRows
    hits: Hits
    reads: Reads
    hit_prefetch: Prefetches
    d2h: StepCopies
    #: host copies of what passes through; a deferred key's rows among it
    mm_cpu_snapshot: dict[str, Any]
    snapshot_event: LandedEvent | None
    #: keys of the snapshot whose values are the step's rows
    deferred_keys: frozenset[str]
    has_hidden: bool
    #: the row checks' own
    sums: Any = None


class Schedule(NamedTuple):
    """A scheduler output, checked."""

    num_scheduled: dict[str, int]
    ended: list[str]
    hits: Hits
    #: blocks that new requests were given to write, beyond their hits
    allocated: list[int]
    error: BadStepError | None
    #: tokens of the prompts that come with the step
    query_tokens: int = 0


def read_schedule(scheduler_output: Any, config: PrefixCacheConfig, live: Mapping[str, Any]) -> Schedule:
    """What a scheduler output asks for. What is wrong with its new requests is given as `error`, not
    raised, since the requests that it reports as ended must be flushed all the same."""
    finished = list(scheduler_output.finished_req_ids or ())
    preempted = list(getattr(scheduler_output, "preempted_req_ids", None) or ())
    ended = list(dict.fromkeys([*finished, *preempted]))
    num_scheduled = dict(scheduler_output.num_scheduled_tokens)
    try:
        hits, allocated, asked = _new_requests(scheduler_output.scheduled_new_reqs, num_scheduled, config, live, ended)
        _check_counts(num_scheduled)
    except BadStepError as error:
        return Schedule({}, ended, {}, [], error)
    return Schedule(num_scheduled, ended, hits, allocated, None, asked)


def _new_requests(
    new_requests: Iterable[Any],
    num_scheduled: Mapping[str, int],
    config: PrefixCacheConfig,
    live: Mapping[str, Any],
    ended: list[str],
) -> tuple[Hits, list[int], int]:
    """The hits of the requests that start a new life, the blocks they were given beyond those, and the tokens of
    their prompts (of a request that does not tell its prompt: of its hit and its first chunk)."""
    hits: Hits = {}
    allocated: dict[int, None] = {}
    seen: set[str] = set()
    asked = 0
    for request in new_requests:
        req_id = request.req_id
        if req_id in seen:
            raise BadStepError(f"request {req_id!r} is scheduled as new twice in one step")
        seen.add(req_id)
        if req_id in live and req_id not in ended:
            continue  # it goes on: its blocks are its own
        blocks = _integers(f"request {req_id!r} has block", request.block_ids[0] if request.block_ids else ())
        (tokens,) = _integers(f"request {req_id!r} hits tokens", (request.num_computed_tokens,))
        if tokens:
            hits[req_id] = _hit(req_id, tokens, blocks, config)
        allocated.update(dict.fromkeys(_in_range(req_id, blocks[tokens // config.block_size :], config)))
        prompt = getattr(request, "prompt_token_ids", None)
        asked += len(prompt) if prompt is not None else tokens + num_scheduled.get(req_id, 0)
    return hits, list(allocated), asked


def _hit(req_id: str, tokens: int, given: list[int], config: PrefixCacheConfig) -> tuple[int, list[int]]:
    size = config.block_size
    if tokens < 0 or tokens % size:
        raise BadStepError(
            f"prefix hit not block aligned: request {req_id!r} hits {tokens} tokens, and a block has {size}"
        )
    blocks = _in_range(req_id, given[: tokens // size], config)
    if len(blocks) < tokens // size:
        raise BadStepError(
            f"request {req_id!r} hits {tokens} tokens, which take {tokens // size} blocks, and has {len(blocks)}"
        )
    if len(set(blocks)) < len(blocks):
        raise BadStepError(f"request {req_id!r} hits the same block twice: {blocks}")
    return tokens, blocks


def _in_range(req_id: str, blocks: list[int], config: PrefixCacheConfig) -> list[int]:
    if blocks and not 0 <= min(blocks) <= max(blocks) < config.num_blocks:
        bad = next(block for block in blocks if not 0 <= block < config.num_blocks)
        raise BadStepError(f"request {req_id!r} has block {bad}, and blocks are 0 to {config.num_blocks - 1}")
    return blocks


def _integers(what: str, values: Iterable[Any]) -> list[int]:
    """Integers of any kind as such. Raises `BadStepError`: half a block is none, and is not rounded."""
    values = list(values)
    try:
        return list(map(operator.index, values))
    except TypeError:
        bad = next(value for value in values if not hasattr(value, "__index__"))
        raise BadStepError(f"{what} {bad!r}, which is no integer") from None


def _check_counts(num_scheduled: Mapping[str, int]) -> None:
    _integers("a request is scheduled for tokens", num_scheduled.values())
    if num_scheduled and min(num_scheduled.values()) < 0:
        bad = next(item for item in num_scheduled.items() if item[1] < 0)
        raise BadStepError(f"request {bad[0]!r} is scheduled for {bad[1]} tokens")


def hit_slots(blocks: list[int], block_size: int) -> IntArray:
    """The slots of whole `blocks`, in order."""
    starts = np.asarray(blocks, dtype=np.int64)[:, None] * block_size
    return (starts + np.arange(block_size, dtype=np.int64)).ravel()


def read_rows(
    view: GroupView,
    num_scheduled: Mapping[str, int],
    n: int,
    padded: int,
    config: PrefixCacheConfig,
    last: BatchShape | None = None,
) -> StepRows:
    """The rows of a step of `n` tokens in the batch's order. Raises `BadStepError`.

    `last` is the shape of an earlier step, taken over where it fits.
    """
    order = view.batch_req_ids()
    shape = last if last is not None and last.fits(order, num_scheduled) else _new_shape(list(order), num_scheduled)
    _integers("num_tokens_unpadded and num_tokens_padded are", (n, padded))
    if not 0 <= n <= padded:
        raise BadStepError(f"num_tokens_unpadded is {n} and num_tokens_padded is {padded}")
    if n > config.staging_capacity_tokens:
        raise BadStepError(f"the step has {n} tokens, and the staging capacity is {config.staging_capacity_tokens}")
    if shape.count != n:
        raise BadStepError(f"the batch's requests are scheduled for {shape.count} tokens, and the step has {n}")
    slots = view.step_slots_cpu(shape.req_order, num_scheduled)
    if not isinstance(slots, torch.Tensor):
        raise BadStepError(f"the batch's slots are {type(slots).__name__}, and must be a tensor")
    if slots.dtype is not torch.int64 or slots.ndim != 1 or slots.numel() != n:
        raise BadStepError(
            f"the batch has {slots.numel()} slots ({slots.dtype}, {slots.ndim} dimensions), and the step {n} tokens"
        )
    slots = slots.clone()
    at: IntArray = slots.numpy()
    _check_slots(at, config)
    return StepRows(shape, slots, at)


def _new_shape(order: list[str], num_scheduled: Mapping[str, int]) -> BatchShape:
    if len(set(order)) < len(order):
        raise BadStepError(f"the batch names a request twice: {order}")
    return BatchShape(order, num_scheduled)


def _check_slots(slots: IntArray, config: PrefixCacheConfig) -> None:
    if slots.size == 0:
        return
    in_order = slots if _ascends(slots) else np.sort(slots)
    if in_order[0] < 0 or in_order[-1] >= config.num_slots:
        raise BadStepError(
            f"the batch writes slots {in_order[0]} to {in_order[-1]}, and slots are 0 to {config.num_slots - 1}"
        )
    if in_order is not slots and not _ascends(in_order):
        raise BadStepError("the batch writes a slot twice in one step")


def _ascends(slots: IntArray) -> bool:
    return bool(np.count_nonzero(slots[1:] > slots[:-1]) == slots.size - 1)


def find_step(contexts: Mapping[int, StepContext], step_id: int) -> StepContext:
    """The context of an unconsumed step. Raises `StepConsumedError`."""
    ctx = contexts.get(step_id)
    if ctx is None:
        raise StepConsumedError(f"step {step_id} is unknown or was consumed; unconsumed are {sorted(contexts)}")
    return ctx


def require_handed_over(ctx: StepContext) -> None:
    """Raise `BadStepError` for a step whose save has published it, and has not asked for all of its hits yet."""
    for req_id, reads in ctx.reads.items():
        if not ctx.hit_prefetch.get(req_id, {}).keys() >= reads.keys():
            raise BadStepError(f"step {ctx.step_id} is still being saved: request {req_id!r} has a hit to be fetched")
