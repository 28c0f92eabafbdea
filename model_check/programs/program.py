"""A random program: a runner that draws what it does next, and compares every row with a plain model of a page.

The model keeps rows in dictionaries by identity and knows nothing of tasks, pages, reads or locks.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from palimpsest.errors import AbsentRowsError, PalimpsestError, StaleReadError, WriteFailedError
from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs
from palimpsest.trace import MemorySink

from ..explore.memory import InjectedError
from ..explore.model import BLOCK_SIZE, WIDTH, Identity, Model, Part, View, tag_of
from .batch import NUM_BLOCKS, Draw, Scheduler, Step

#: key: the shape of its rows, which hold an identity in any shape, and their dtype
KEYS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    HIDDEN_KEY: ((WIDTH,), torch.float32),
    "k": ((2, 2), torch.float64),
    "d": ((WIDTH,), torch.float32),
    "e": ((1, WIDTH), torch.int64),
}
DEFERRED = frozenset({"d", "e"})
DEPTH = 3
#: of deferred rows: a few, so that saves flush
BUDGET_BYTES = 16 * 48
PATIENT_S = 30.0

Rows = dict[str, dict[str, list[Identity | None]]]


class WrongError(AssertionError):
    """A row that is not the one that the model has, or a call that ended otherwise than it must."""


@dataclass
class Saved:
    """A step to be consumed, and the rows that it must deliver by request and key."""

    step_id: int
    want: Rows
    #: errors that it may end with: rows that were absent, or a reset since
    may_raise: tuple[type[BaseException], ...] = ()


class Program:
    """One cache, its runner and the model. Give it actions; `finish` at the end."""

    def __init__(self, *, eager: bool, trace: MemorySink | None = None) -> None:
        self.trace = trace or MemorySink(tag_of)
        self.view, self.model, self.scheduler = View(), Model(), Scheduler()
        config = PrefixCacheConfig(
            NUM_BLOCKS, BLOCK_SIZE, staging_depth=DEPTH, staging_capacity_tokens=64, gpu_staging_bytes=BUDGET_BYTES,
            staging_claim_timeout_s=PATIENT_S,
        )  # fmt: skip
        self.cache = PrefixCacheManager(config, self.view, eager=eager, trace=self.trace)
        self.cache.register_policy(ModelCachePolicy(deferred_keys=DEFERRED))
        self.saved: deque[Saved] = deque()
        #: what was done, and how often
        self.done: Counter[str] = Counter()
        #: rows that were compared
        self.rows = 0
        #: whether a write was lost: everything raises from then on
        self.lost = False
        self._builder = ThreadPoolExecutor(1, "program-builder")
        self._building: list[Future[None]] = []
        self._gate = threading.Event()

    # ---------------------------------------------------------------- steps

    def step(self, draw: Draw) -> None:
        """Begin and save a step; where there is no page left, a step is consumed first."""
        step = self.scheduler.step(draw)
        self._hold(draw)
        self.begin(step)
        if not step.parts:
            self.done["idle"] += 1
            return
        while len(self.saved) + len(self._building) >= DEPTH:
            self.consume(draw) if self.saved else self.collect()
        keys = [key for key in KEYS if key == HIDDEN_KEY or draw(2)]
        self.save(step.parts, keys, padding=draw(3))
        self.done["step"] += 1

    def _hold(self, draw: Draw) -> None:
        """Hold the prefetch thread for some steps, so that reads are pending while their blocks are reused."""
        if draw(2):
            self._gate.set()
        if self._gate.is_set() and draw(2):
            self._gate = threading.Event()
            self.cache._prefetch_pool.submit(self._gate.wait, PATIENT_S)

    def begin(self, step: Step) -> None:
        """Tell the cache what was scheduled."""
        for name in (*step.finished, *step.preempted):
            self.model.end(name)
        for part in step.parts.values():
            if part.new:
                self.model.allocate(part.blocks[part.hit // BLOCK_SIZE :])
                self.done["hit"] += bool(part.hit)
        self.done["end"] += len(step.finished) + len(step.preempted)
        self.view.order = list(step.parts)
        slots = [slot for part in step.parts.values() for slot in part.slots()]
        self.view.slots = torch.tensor(slots, dtype=torch.int64)
        self.cache.new_step_starts(scheduled(step))

    def save(self, parts: dict[str, Part], keys: list[str], *, padding: int = 0) -> None:
        """Save the step begun out of live buffers that are overwritten at once."""
        live = self.live_rows(parts, keys, padding)
        count = int(self.view.slots.numel())
        try:
            mm = {key: live[key] for key in keys if key != HIDDEN_KEY}
            step_id = self.hand_over(live[HIDDEN_KEY], mm, count, count + padding)
        finally:
            for rows in live.values():
                rows.fill_(-1)
        keys = keys if count else []  # a step without tokens produces nothing
        for name, part in parts.items():
            self.model.save(name, part, keys)
        want = {name: {key: self.model.prompt(name, part, key) for key in keys} for name, part in parts.items()}
        absent = any(None in rows.get(HIDDEN_KEY, ()) for rows in want.values())
        self.saved.append(Saved(step_id, want, (AbsentRowsError,) if absent else ()))

    def hand_over(self, hidden: Any, mm: Mapping[str, Any], count: Any, padded: Any = 0) -> int:
        """Call the cache's save as it is; gives the step's number."""
        return self.cache.save_outputs(hidden, mm, num_tokens_unpadded=count, num_tokens_padded=padded or count)

    def live_rows(self, parts: dict[str, Part], keys: list[str], padding: int = 0) -> dict[str, torch.Tensor]:
        """The forward's outputs: rows with their identities, and padding behind them."""
        return {key: self._rows(parts, key, padding) for key in keys}

    def _rows(self, parts: dict[str, Part], key: str, padding: int) -> torch.Tensor:
        shape, dtype = KEYS[key]
        rows = [
            self.model.identity(name, at, key)
            for name, part in parts.items()
            for at in range(part.start, part.start + part.count)
        ]
        rows += [(-2.0,) * WIDTH] * padding
        return torch.tensor(rows, dtype=dtype).reshape(-1, *shape)

    # ---------------------------------------------------------------- consuming

    def consume(self, draw: Draw) -> None:
        """Consume one of the saved steps: here, on the builder's thread, of some requests only, or without outputs."""
        if not self.saved:
            return
        saved = self.saved[draw(len(self.saved))]
        self.saved.remove(saved)
        how = draw(5)
        if how == 0:
            self.cache.discard_step(saved.step_id)
            self.done["discard"] += 1
            return
        names = [name for name in saved.want if how > 1 or draw(2)]
        if how == 4:
            self._materialize(saved, names)
        else:
            self._building.append(self._builder.submit(self._materialize, saved, names))
        self.done["materialize"] += 1

    def _materialize(self, saved: Saved, names: list[str]) -> None:
        try:
            outputs = self.cache.materialize(saved.step_id, names)
            self._compare(saved, names, outputs)
        except saved.may_raise:
            self.done["allowed"] += 1
        except (WriteFailedError, InjectedError):
            if not self.lost:
                raise

    def _compare(self, saved: Saved, names: list[str], outputs: StepOutputs) -> None:
        for name in names:
            for key, want in saved.want[name].items():
                if key == HIDDEN_KEY and None in want:
                    raise WrongError(f"step {saved.step_id} delivers hidden states of {name!r} that nobody wrote")
                of_key = outputs.hidden_states if key == HIDDEN_KEY else outputs.mm_outputs.get(key)
                got = [tuple(row) for row in (of_key or {})[name].reshape(-1, WIDTH).to(torch.float64).tolist()]
                if got != [row or (0.0,) * WIDTH for row in want]:
                    raise WrongError(f"step {saved.step_id}, request {name!r}, key {key!r}: {got} and not {want}")
                self.rows += len(want)

    def collect(self, _draw: Draw | None = None) -> None:
        """Wait for what the builder's thread was given; raises what it found."""
        building, self._building = self._building, []
        for future in building:
            future.result(PATIENT_S)

    # ---------------------------------------------------------------- the rest

    def reset(self, _draw: Draw | None = None) -> None:
        """Start a new epoch: what was saved before may be delivered as planned, or refused."""
        self.collect()
        self.cache.reset()
        self.model.reset()
        for saved in self.saved:
            saved.may_raise = (*saved.may_raise, StaleReadError)
        self.done["reset"] += 1

    def settle(self) -> None:
        """Wait until nobody has anything left to do, and take in what was written."""
        self._gate.set()
        self.collect()
        tasks = list(self.cache._controller._tasks.values())
        self.cache._controller.join(task.tid for task in tasks if task.state is not TaskState.PENDING)
        self.cache._prefetch_pool.submit(lambda: None).result(PATIENT_S)
        self.cache._commit()

    def finish(self) -> None:
        """Consume what is left, end everybody, and check that nothing is held and nothing contradicts itself."""
        self._gate.set()
        self.collect()
        while self.saved and not self.lost:
            self._materialize(saved := self.saved.popleft(), list(saved.want))
        if not self.lost:
            self.begin(self.scheduler.end_all())
            self.settle()
            self.check_nothing_held()
        self.close()

    def close(self) -> None:
        """Shut down, whatever is left: then nothing is held either."""
        self._gate.set()
        self.cache.shutdown()
        self._builder.shutdown()
        self.check_nothing_held()
        self.trace.close()

    def check_nothing_held(self) -> None:
        """Raise `WrongError` when a page, a byte or a read is held."""
        self.cache.check_invariants()
        controller = self.cache._controller
        held = [says for says, _ in controller.staging.holds()]
        held += [f"read {read.rid} is pending" for read in self.cache._pending_reads]
        held += [f"{controller._staged_bytes} bytes are charged"] if controller._staged_bytes else []
        if held:
            raise WrongError("; ".join(held))


def scheduled(step: Step) -> Any:
    """A step as the engine's scheduler puts it."""
    news = [
        SimpleNamespace(req_id=name, num_computed_tokens=part.hit, block_ids=[list(part.blocks)])
        for name, part in step.parts.items()
        if part.new
    ]
    counts = {name: part.count for name, part in step.parts.items()}
    return SimpleNamespace(
        scheduled_new_reqs=news, finished_req_ids=set(step.finished), preempted_req_ids=set(step.preempted),
        num_scheduled_tokens=counts,
    )  # fmt: skip


def refused(call: Callable[[], Any], *errors: type[PalimpsestError]) -> None:
    """Make a call that must raise one of `errors`. Raises `WrongError` when it does not."""
    try:
        call()
    except errors:
        return
    raise WrongError(f"a call was taken that must raise {' or '.join(error.__name__ for error in errors)}")
