"""A runner that does what a scenario says: an engine, a builder, and threads beside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from palimpsest.errors import (
    AbsentRowsError,
    InvariantError,
    ShutdownError,
    StaleReadError,
    WaitTimeoutError,
    WriteFailedError,
)
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs

from .device import SlowDevice
from .digest import digest
from .finding import Finding
from .memory import SharedRows
from .model import BLOCK_SIZE, NUM_BLOCKS, WIDTH, Identity, Model, Part, View, tag_of
from .primitives import CooperativeSync
from .scheduler import STATE_LOCK, Scheduler
from .threads import FAILS, LATE, Abandon, Thread
from .watch import Watch

Call = Callable[[], Any]
#: request -> key -> what must be delivered of a step
Expected = dict[str, dict[str, list[Identity | None]]]


class Script:
    """The threads of a scenario and the cache that they use. Made before the run; the engine runs `engine`."""

    def __init__(
        self,
        scheduler: Scheduler,
        allows: tuple[type[BaseException], ...] = (),
        error: type[BaseException] = OSError,
        slow_device: bool = False,
        **options: Any,
    ) -> None:
        self.scheduler, self.allows = scheduler, allows
        self.sync = CooperativeSync(scheduler)
        self.watch = Watch(scheduler, tag_of)
        self.model = Model()
        self.view = View()
        # A warning cuts a wait in two, of which a schedule lets only one run out: where it is wanted, options say so.
        options = {"slow_wait_s": 0, **options}
        config = PrefixCacheConfig(NUM_BLOCKS, BLOCK_SIZE, staging_capacity_tokens=16, **options)
        self.cache = PrefixCacheManager(config, self.view, eager=False, sync=self.sync, trace=self.watch)
        self.cache.register_policy(ModelCachePolicy(deferred_keys=frozenset({"d"})))
        self._name_primitives()
        self._device = SlowDevice(scheduler, self.cache) if slow_device else None
        SharedRows(scheduler, self.cache, error)
        self._injected = error
        self._was_reset = False
        self._parts: dict[str, Part] = {}
        self._expected: dict[int, Expected] = {}
        self._to_build: deque[int] = deque()
        self._no_more = False
        self._threads: list[Thread] = []
        scheduler.state = self._state

    def _name_primitives(self) -> None:
        cache, controller = self.cache, self.cache._controller
        names: dict[str, Any] = {
            STATE_LOCK: cache._state_lock,
            "the task lock": controller._lock,
            "the page lock": controller.staging._lock,
            "work": controller._work,
            "a page": controller.staging._freed,
        }
        for name, primitive in names.items():
            primitive.name = name
        process, thread_of = controller._process, self.scheduler

        def forgetful(tasks: Any) -> None:
            process(tasks)
            if thread_of.current is not None:
                thread_of.current.forget()

        controller._process = forgetful  # type: ignore[method-assign]

    def _state(self) -> bytes:
        """A value that is equal in runs that go on alike, as far as the checker, the primitives, the pool, the
        device and the threads' calls can tell."""
        scheduler = self.scheduler
        rows = tuple(storage.numpy().tobytes() for storage in self.cache._pool._storage.values())
        queued = self._device.queued if self._device is not None else 0
        threads = tuple(thread.place() for thread in scheduler.threads)
        budgets = scheduler.faults, scheduler.timeouts, scheduler.clock
        to_build = tuple(self._to_build), self._no_more
        return digest((self.watch.state(), self.sync.state(), rows, threads, queued, budgets, to_build))

    # ---------------------------------------------------------------- the engine

    def begin(self, parts: Mapping[str, Part] | None = None, *, finished: Iterable[str] = ()) -> None:
        """Begin a step of these requests."""
        parts = self._parts = dict(parts or {})
        for request in finished:
            self.model.end(request)
        for part in parts.values():
            if part.new:
                self.model.allocate(part.blocks[part.hit // BLOCK_SIZE :])
        self.view.order = list(parts)
        self.view.slots = torch.tensor([slot for part in parts.values() for slot in part.slots()], dtype=torch.int64)
        news = [
            SimpleNamespace(req_id=name, num_computed_tokens=part.hit, block_ids=[list(part.blocks)])
            for name, part in parts.items()
            if part.new
        ]
        scheduled = {name: part.count for name, part in parts.items()}
        self.call("new_step_starts", lambda: self.cache.new_step_starts(
            SimpleNamespace(
                scheduled_new_reqs=news, finished_req_ids=set(finished), num_scheduled_tokens=scheduled
            )
        ))  # fmt: skip

    def save(self, *keys: str) -> int:
        """Save the step begun: hidden states and `keys`, out of live buffers that are overwritten at once."""
        named = (HIDDEN_KEY, *keys)
        live = {key: self._rows(key) for key in named}
        count = int(self.view.slots.numel())
        try:
            step: int = self.call("save_outputs", lambda: self.cache.save_outputs(
                live[HIDDEN_KEY], {key: live[key] for key in keys}, num_tokens_unpadded=count, num_tokens_padded=count
            ))  # fmt: skip
        finally:
            for rows in live.values():
                rows.fill_(-1.0)
        for request, part in self._parts.items():
            self.model.save(request, part, named)
        self._expected[step] = {
            request: {key: self.model.prompt(request, part, key) for key in named}
            for request, part in self._parts.items()
        }
        return step

    def step(self, parts: Mapping[str, Part], *keys: str, finished: Iterable[str] = ()) -> int:
        """Begin and save a step; it is yet to be consumed."""
        self.begin(parts, finished=finished)
        return self.save(*keys)

    def run(self, parts: Mapping[str, Part], *keys: str, finished: Iterable[str] = ()) -> None:
        """A whole step, consumed on the engine's own thread."""
        self.consume(self.step(parts, *keys, finished=finished))

    def forward(self) -> None:
        """The model's forward: as long as it takes, all others may go on."""
        self.scheduler.point("forward", "", yields=True)

    def idle(self, *, finished: Iterable[str] = ()) -> None:
        """A step without a forward."""
        self.begin({}, finished=finished)

    def reset(self) -> None:
        """Start a new epoch."""
        self._was_reset = True
        self.call("reset", self.cache.reset)
        self.model.reset()

    def discard(self, step: int) -> None:
        """Consume a step without its outputs."""
        self.call("discard_step", lambda: self.cache.discard_step(step))

    def shutdown(self) -> None:
        """Shut the cache down."""
        self.call("shutdown", self.cache.shutdown)

    def _rows(self, key: str) -> torch.Tensor:
        return torch.tensor(
            [
                self.model.identity(name, at, key)
                for name, part in self._parts.items()
                for at in range(part.start, part.start + part.count)
            ]
        ).reshape(-1, WIDTH)

    # ---------------------------------------------------------------- other threads

    def build(self, step: int) -> None:
        """Hand a step to the builder thread."""
        if not any(thread.name == "builder" for thread in self._threads):
            self.beside("builder", self._build_all)
        self._to_build.append(step)

    def beside(self, name: str, call: Call) -> None:
        """Let another thread do something."""
        self._threads.append(self.scheduler.spawn(name, lambda: self.tolerate(call)))

    def _build_all(self) -> None:
        while True:
            self.scheduler.point("wait for", "a step to build", lambda: bool(self._to_build) or self._no_more)
            if not self._to_build:
                return
            step = self._to_build.popleft()
            self.tolerate(lambda: self.consume(step))  # noqa: B023  called at once

    def consume(self, step: int) -> None:
        """Materialize a step and compare what is delivered."""
        want = self._expected[step]
        absent = any(None in keys[HIDDEN_KEY] for keys in want.values())
        try:
            outputs = self.call("materialize", lambda: self.cache.materialize(step, list(want)))
        except AbsentRowsError:
            if not absent:
                raise
            return
        if absent:
            self._wrong(f"step {step} delivers hidden states of a prefix that nobody wrote")
        for request, keys in want.items():
            for key, rows in keys.items():
                self._compare(step, request, key, rows, outputs)

    def _compare(self, step: int, request: str, key: str, want: list[Identity | None], outputs: StepOutputs) -> None:
        of_key = outputs.hidden_states if key == HIDDEN_KEY else outputs.mm_outputs.get(key)
        got = [tuple(row) for row in (of_key or {})[request].tolist()]
        if got != [row or (0.0,) * WIDTH for row in want]:
            self._wrong(f"step {step} delivers request {request!r}, key {key!r}: {got} and not {want}")

    def _wrong(self, says: str) -> None:
        self.scheduler.find(Finding("wrong row", says, ("ReadIntegrity",)))

    # ---------------------------------------------------------------- calls

    def call(self, name: str, what: Call) -> Any:
        """Enter the cache; what a thread has seen there matters no more once it is out again."""
        self.scheduler.point("call", name)
        result = what()
        if self.scheduler.current is not None:
            self.scheduler.current.forget()
        return result

    def tolerate(self, call: Call) -> None:
        """Do something that may end with an error that the scenario allows."""
        try:
            call()
        except Abandon:
            raise
        except self.allows as error:
            if not self._has_cause(error):
                thread = self.sync.thread_name()
                self.scheduler.find(Finding.of_error(f"{thread}, where nothing calls for it,", error))

    def _has_cause(self, error: BaseException) -> bool:
        """Whether the schedule made something happen that an error may be about."""
        if isinstance(error, StaleReadError):
            return self._was_reset
        late = any(step.how == LATE for step in self.scheduler.steps)
        if isinstance(error, WaitTimeoutError):
            return late
        if isinstance(error, (WriteFailedError, self._injected)):
            return late or self.cache._closed or any(step.how == FAILS for step in self.scheduler.steps)
        return True

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Without choices: for what comes before and after what the scenario is about."""
        self.scheduler.quiet = True
        yield
        self.scheduler.quiet = False

    @contextmanager
    def setup(self) -> Iterator[None]:
        """Without choices, and until nobody has anything left to do."""
        with self.quietly():
            yield
            self.scheduler.settle()

    # ---------------------------------------------------------------- the end

    def engine(self, body: Callable[[Script], None]) -> None:
        """The engine's thread: what the scenario says, then the end, at which nothing may be held."""
        self.tolerate(lambda: body(self))
        self._no_more = True
        for thread in self._threads:
            self.scheduler.point("join", thread.name, lambda: thread.done)  # noqa: B023  called at once
        self.scheduler.settle()
        with self.quietly():
            self._check()
            self.cache.shutdown()
            self._check()

    def _check(self) -> None:
        try:
            self.cache.check_invariants()
        except InvariantError as error:
            self.scheduler.find(Finding("held", str(error), ("ReleasedOnce",)))

    def close(self) -> None:
        """After the run: the checker's last word, and that nothing is held."""
        cache, controller = self.cache, self.cache._controller
        self.watch.close()
        held = [f"read {read.rid} is pending" for read in cache._pending_reads]
        held += [says for says, _ in controller.staging.holds()]
        held += [f"{controller._staged_bytes} bytes are charged"] if controller._staged_bytes else []
        if held:
            found = Finding("held", f"after shutdown: {'; '.join(held)}", ("ReleasedOnce",))
            self.scheduler.finding = self.scheduler.finding or found
        if odd := self._odd_causes():
            found = Finding("exception", f"lost with an error that nothing calls for: {'; '.join(odd)}")
            self.scheduler.finding = self.scheduler.finding or found

    def _odd_causes(self) -> list[str]:
        """Errors that tasks and prefetches were lost with, other than those that the scenario is about: who waits
        for them is told of the loss and not of the cause."""
        causes: dict[str, BaseException] = {
            f"task {tid}": cause for tid, cause in self.cache._controller._causes.items()
        }
        known: tuple[type[BaseException], ...] = (
            ShutdownError,
            StaleReadError,
            AbsentRowsError,
            WriteFailedError,
            *self.allows,
        )
        causes |= {future.name: future.error for future in self.sync.futures if future.error is not None}
        return [f"{what}: {cause!r}" for what, cause in causes.items() if not isinstance(cause, known)]
