"""Driving a prefix cache from a script: tagged rows, steps in one line, and gates instead of sleeps.

Every row carries its identity (request, generation, position, key) in its columns, never anything that is
derived from its slot: a row of the wrong tenant cannot look right.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs
from palimpsest.trace import MemorySink
from palimpsest_model_check.replay.machine import replay
from palimpsest_model_check.replay.verdict import Verdict

NUM_BLOCKS = 16
BLOCK_SIZE = 4
WIDTH = 4  # a row is (request, generation, position, key)

#: where the live buffers are; the tests of tests/device run the others once more with an accelerator
DEVICE = os.environ.get("PALIMPSEST_TEST_DEVICE", "cpu")

#: the bound of waits that must not run out, and of those that must
PATIENT_S, HASTY_S = 20.0, 0.05


def tag_of(_key: str, rows: torch.Tensor) -> np.ndarray | None:
    """The identities in tagged rows; None for rows that carry none."""
    if rows.ndim != 2 or rows.shape[1] != WIDTH:
        return None
    return (
        rows.detach()
        .cpu()
        .to(torch.float64)
        .nan_to_num(-1.0)
        .clamp(-1.0, float(1 << 24))
        .to(torch.int64)
        .numpy()
        .copy()
    )


@dataclass
class View:
    """The runner's batch, as far as the cache asks."""

    block_size: int = BLOCK_SIZE
    order: list[str] = field(default_factory=list)
    slots: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def batch_req_ids(self) -> list[str]:
        return list(self.order)

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: Mapping[str, int]) -> torch.Tensor:
        return self.slots


@dataclass(frozen=True)
class Part:
    """One request in a step: its blocks, the position it starts at, its tokens, and the tokens of its hit."""

    blocks: list[int]
    start: int
    count: int
    hit: int = 0
    new: bool = True

    def slots(self) -> list[int]:
        span = range(self.start, self.start + self.count)
        return [self.blocks[pos // BLOCK_SIZE] * BLOCK_SIZE + pos % BLOCK_SIZE for pos in span]


def prefill(blocks: list[int], count: int) -> Part:
    """A new request that computes its first `count` tokens."""
    return Part(blocks, 0, count)


def hit(blocks: list[int], tokens: int, count: int) -> Part:
    """A new request that reuses `tokens` and computes `count` more."""
    return Part(blocks, tokens, count, hit=tokens)


def more(blocks: list[int], start: int, count: int = 1) -> Part:
    """A request that goes on."""
    return Part(blocks, start, count, new=False)


def code(name: str) -> float:
    """A number that stands for a name in a row."""
    return float(int.from_bytes(name.encode()[:3].ljust(3, b"\0"), "little"))


def row(request: str, generation: int, position: int, key: str) -> torch.Tensor:
    """The row of an identity."""
    return torch.tensor([code(request), float(generation), float(position), code(key)])


class Script:
    """A runner that does what a test says, one step after the other."""

    def __init__(
        self,
        policy: ModelCachePolicy | None = None,
        *,
        eager: bool = True,
        num_blocks: int = NUM_BLOCKS,
        **options: Any,
    ) -> None:
        sink = options.pop("trace", None) or MemorySink(tag_of)
        self.trace = None if options.pop("untraced", False) else sink
        options.setdefault("staging_claim_timeout_s", PATIENT_S)
        self.view = View()
        config = PrefixCacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, **options)
        self.cache = PrefixCacheManager(config, self.view, eager=eager, trace=self.trace)
        if policy is not None:
            self.cache.register_policy(policy)
        self.generation: dict[str, int] = {}
        #: live output buffers, which the next step overwrites in place
        self.live: dict[str, torch.Tensor] = {}

    # ------------------------------------------------------------ steps

    def begin(
        self,
        parts: Mapping[str, Part] | None = None,
        *,
        finished: Iterable[str] = (),
        preempted: Iterable[str] = (),
    ) -> None:
        """`new_step_starts` for a step of these requests."""
        parts = parts or {}
        for request in (*finished, *preempted):
            self.generation[request] = self.generation.get(request, 0) + 1
        self.parts = dict(parts)
        self.view.order = list(parts)
        slots = [slot for part in parts.values() for slot in part.slots()]
        self.view.slots = torch.tensor(slots, dtype=torch.int64)
        self.cache.new_step_starts(
            SimpleNamespace(
                scheduled_new_reqs=[
                    SimpleNamespace(req_id=name, num_computed_tokens=part.hit, block_ids=[list(part.blocks)])
                    for name, part in parts.items()
                    if part.new
                ],
                finished_req_ids=set(finished),
                preempted_req_ids=set(preempted),
                num_scheduled_tokens={name: part.count for name, part in parts.items()},
            )
        )

    def save(self, *keys: str, hidden: bool = True, mm: Mapping[str, Any] | None = None) -> int:
        """`save_outputs` of the step begun: tagged hidden states and tagged rows of `keys`, out of live
        buffers that are overwritten as soon as it returns."""
        count = int(self.view.slots.numel())
        live = {key: self._rows(key) for key in ((HIDDEN_KEY, *keys) if hidden else keys)}
        outputs = {**{key: live[key] for key in keys}, **(mm or {})}
        try:
            return self.cache.save_outputs(
                live.get(HIDDEN_KEY), outputs, num_tokens_unpadded=count, num_tokens_padded=count
            )
        finally:
            for rows in live.values():
                rows.fill_(-1.0)

    def step(self, parts: Mapping[str, Part], *keys: str, finished: Iterable[str] = (), **options: Any) -> int:
        """One whole step, not yet consumed."""
        self.begin(parts, finished=finished)
        return self.save(*keys, **options)

    def run(self, parts: Mapping[str, Part], *keys: str, finished: Iterable[str] = (), **options: Any) -> StepOutputs:
        """One whole step and its outputs for all of its requests."""
        return self.cache.materialize(self.step(parts, *keys, finished=finished, **options), list(parts))

    def idle(self, *, finished: Iterable[str] = ()) -> None:
        """A step without a forward."""
        self.begin({}, finished=finished)

    def _rows(self, key: str) -> torch.Tensor:
        return torch.stack(
            [
                row(name, self.generation.get(name, 0), position, key)
                for name, part in self.parts.items()
                for position in range(part.start, part.start + part.count)
            ]
        ).to(DEVICE)

    # ------------------------------------------------------------ what must be there

    def rows_of(self, request: str, start: int, stop: int, key: str = HIDDEN_KEY, generation: int = 0) -> torch.Tensor:
        """The rows that a request wrote for a span of its positions."""
        return torch.stack([row(request, generation, position, key) for position in range(start, stop)])

    def pool(self, key: str, slots: Iterable[int]) -> torch.Tensor:
        """What lies in the pool."""
        return self.cache._pool.rows(key, torch.tensor(list(slots), dtype=torch.int64))

    def settle(self) -> None:
        """Wait until the committer and the prefetch thread have nothing left to do."""
        tasks = list(self.cache._controller._tasks.values())
        self.cache._controller.join(task.tid for task in tasks if task.state is not TaskState.PENDING)
        self.cache._prefetch_pool.submit(lambda: None).result(PATIENT_S)

    def close(self) -> None:
        """Check that nothing contradicts itself, shut down, and check that nothing is held."""
        self.cache.check_invariants()
        self.cache.shutdown()
        self.cache.check_invariants()
        assert not list(self.cache._pending_reads)
        assert self.cache._controller._staged_bytes == 0
        assert not any(self.cache._controller._staging_pool._busy)

    def verdict(self) -> Verdict:
        """What the specification says of all that was done."""
        self.trace.close()
        return replay("this test's trace", self.trace.config, self.trace.events)


class Gate:
    """A place where a thread stops until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def wait_here(self) -> None:
        self.reached.set()
        assert self._open.wait(PATIENT_S), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        assert self.reached.wait(PATIENT_S), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def held_at(owner: Any, name: str, *, after: bool = False) -> Iterator[Gate]:
    """Stop whoever calls `owner.name`, before (or after) it does its work, until the gate opens."""
    gate, real = Gate(), getattr(owner, name)

    def stopped(*args: Any, **kwargs: Any) -> Any:
        if after:
            result = real(*args, **kwargs)
            gate.wait_here()
            return result
        gate.wait_here()
        return real(*args, **kwargs)

    setattr(owner, name, stopped)
    try:
        yield gate
    finally:
        gate.open()
        setattr(owner, name, real)


class Background:
    """A call on a thread of its own, whose outcome the test asks for."""

    def __init__(self, call: Callable[[], Any], name: str = "scripted") -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENT_S)
        assert not self._thread.is_alive(), "the call does not return"
        if self._error is not None:
            raise self._error
        return self._result


def fail_at(owner: Any, name: str, error: BaseException) -> None:
    """Make every call of `owner.name` raise `error`."""

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise error

    setattr(owner, name, failing)
