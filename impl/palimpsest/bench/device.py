"""A whole step with the cache beside the same step without it, with a builder a step behind: what a runner feels.

The forward is a chain of matrix products that takes about `FORWARD_S`; it ends by overwriting the live buffers in
place. The loop runs as fast as it can, so that what the engine thread, the copies and the builder take beyond what
they hide is what the step takes longer.
"""

from __future__ import annotations

import queue
import threading
import time

import torch
from torch.profiler import record_function

from palimpsest.bench.driver import PATIENT_S, Checked, Driver, delivered_rows
from palimpsest.bench.results import Measured, Repeat, SaveCost
from palimpsest.bench.rows import IDENTITY_WIDTH, LiveBuffers, RowMaker
from palimpsest.bench.steps import Step
from palimpsest.bench.timeline import SAVE, measure_saves
from palimpsest.bench.workloads import BLOCK_SIZE, TALKER, Maker, Sizes, Workload, decode, hits, prefill
from palimpsest.prefix_cache import HIDDEN_KEY, KeyLayout, ModelCachePolicy, PrefixCacheConfig

FORWARD_S, _QUICK_FORWARD_S = 0.006, 0.0002
_MATRIX, _QUICK_MATRIX = 4096, 64
_PROFILED_STEPS = 40

_HIDDEN = {HIDDEN_KEY: KeyLayout(torch.bfloat16, (4096,))}
_BOTH = {**_HIDDEN, TALKER: KeyLayout(torch.bfloat16, (2048,))}
_QUICK = Sizes(4, 1, 16, num_blocks=64)

DEVICE_WORKLOADS = {
    each.letter: each
    for each in (
        Workload("decode64", "decode, 64 x 1", 1.03, _BOTH, decode, Sizes(64, 1, 120, num_blocks=1024), _QUICK),
        Workload("decode256", "decode, 256 x 1", 1.05, _BOTH, decode, Sizes(256, 1, 120, num_blocks=4096), _QUICK),
        Workload(
            "prefill8192", "prefill, 8,192", 1.15, _HIDDEN, prefill,
            Sizes(1, 8192, 60, num_blocks=2048), Sizes(1, 64, 8, num_blocks=64),
        ),
        Workload(
            "hits", "8 hits of 2,048 and 64 new", 1.10, _HIDDEN, hits,
            Sizes(8, 64, 80, hit=2048), Sizes(2, 16, 4, hit=32, num_blocks=64),
        ),
    )
}  # fmt: skip


class Forward:
    """Work on the device that takes about `seconds`."""

    def __init__(self, device: torch.device, seconds: float, size: int) -> None:
        self._x = torch.randn(size, size, device=device, dtype=torch.bfloat16) / size**0.5
        self.times = 1
        for _ in range(2):  # the first one warms up
            self.times, begun = 20, time.perf_counter()
            self()
            synchronize(device)
            self.times = max(1, round(seconds / ((time.perf_counter() - begun) / 20)))

    def __call__(self) -> None:
        y = self._x
        for _ in range(self.times):
            y = y @ self._x


def synchronize(device: torch.device) -> None:
    """Wait for all that was queued on the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class StepLoop:
    """The engine's loop and its builder, on a pool that is written full."""

    def __init__(self, workload: Workload, sizes: Sizes, device: torch.device, *, quick: bool) -> None:
        self.workload, self.sizes, self.device = workload, sizes, device
        self.maker = Maker(sizes.num_blocks)
        fill = sizes.hit or min(2048, sizes.num_blocks * BLOCK_SIZE)
        most = max(fill, sizes.requests * sizes.tokens)
        self.live = LiveBuffers(RowMaker(workload.layouts, str(device)), most)
        self.host_rows = RowMaker(workload.layouts)
        self.checked = Checked(self.host_rows)
        self.forward = Forward(device, _QUICK_FORWARD_S if quick else FORWARD_S, _QUICK_MATRIX if quick else _MATRIX)
        config = PrefixCacheConfig(sizes.num_blocks, BLOCK_SIZE, staging_capacity_tokens=most)
        policy = ModelCachePolicy(per_token_keys=frozenset(workload.layouts) - {HIDDEN_KEY})
        self.driver = Driver(config, policy, self.live, eager=False)
        self.with_cache(self.maker.fill(fill), whole=True)

    def step_bytes(self) -> int:
        """Bytes of the rows that a step computes."""
        rows = self.sizes.requests * self.sizes.tokens
        return sum(rows * layout.row_bytes for layout in self.workload.layouts.values())

    def steps(self) -> list[Step]:
        """The workload's steps, with requests that are new."""
        return self.workload.build(self.maker, self.sizes)

    def with_cache(self, steps: list[Step], *, whole: bool) -> float:
        """Seconds per step with the cache. Every delivered row is checked: `whole`, or by its identity columns."""
        columns = self._columns(steps)
        jobs: queue.SimpleQueue[tuple[Step, int] | None] = queue.SimpleQueue()
        faults: list[BaseException] = []
        builder = threading.Thread(target=self._build, args=(jobs, whole, faults), daemon=True)
        builder.start()
        synchronize(self.device)
        begun = time.perf_counter()
        try:
            for step, of_step in zip(steps, columns, strict=True):
                self.driver.start(step)
                self._run_forward(of_step)
                with record_function(SAVE):
                    self.driver.save(step)
                jobs.put((step, self.driver.saved))
        finally:
            jobs.put(None)
            builder.join(PATIENT_S)
        synchronize(self.device)
        taken = time.perf_counter() - begun
        if faults:
            raise faults[0]
        if builder.is_alive():
            raise TimeoutError(f"the builder did not end within {PATIENT_S:g} s")
        return taken / len(steps)

    def without_cache(self, steps: list[Step]) -> float:
        """Seconds per step of the same forwards alone."""
        columns = self._columns(steps)
        synchronize(self.device)
        begun = time.perf_counter()
        for of_step in columns:
            self._run_forward(of_step)
        synchronize(self.device)
        return (time.perf_counter() - begun) / len(steps)

    def _columns(self, steps: list[Step]) -> list[dict[str, torch.Tensor]]:
        maker = self.live.maker
        return [{key: maker.columns(key, step.computed) for key in maker.layouts} for step in steps]

    def _run_forward(self, columns: dict[str, torch.Tensor]) -> None:
        self.forward()
        for key, of_key in columns.items():
            self.live.write(key, of_key)

    def _build(
        self, jobs: queue.SimpleQueue[tuple[Step, int] | None], whole: bool, faults: list[BaseException]
    ) -> None:
        while (job := jobs.get()) is not None:
            step, step_id = job
            if faults:
                continue
            try:
                outputs = self.driver.cache.materialize(step_id, step.order)
                rows = delivered_rows(step, outputs, None if whole else IDENTITY_WIDTH)
                (self.checked.take if whole else self.checked.take_identities)(step, rows)
            except BaseException as error:  # raised again on the engine's thread
                faults.append(error)

    def host_floor(self, step: Step) -> float:
        """Seconds that the delivered bytes of a step take as copies of whole runs into touched memory."""
        counts = [part.hit + part.count for part in step.parts]
        targets = [
            torch.empty(count, *layout.row_shape, dtype=layout.dtype).fill_(0)
            for layout in self.workload.layouts.values()
            for count in counts
        ]
        sources = [torch.empty_like(target).fill_(0) for target in targets]
        times = []
        for _ in range(10):
            begun = time.perf_counter()
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
            times.append(time.perf_counter() - begun)
        return min(times)


def measure_steps(
    workload: Workload, device: torch.device, *, quick: bool, repeats: int
) -> tuple[Measured, SaveCost | None]:
    """A step's microseconds with the cache, and without it as the floor; and, on an accelerator, how long its saves
    keep the engine thread.

    Where hits deliver more bytes than the host can copy during a forward, the goal grows by as much.
    """
    saves = None
    loop = StepLoop(workload, workload.quick if quick else workload.sizes, device, quick=quick)
    try:
        loop.with_cache(loop.steps(), whole=True)
        runs = []
        for _ in range(repeats):
            steps = loop.steps()
            without = loop.without_cache(steps)
            runs.append(Repeat(loop.with_cache(steps, whole=False) * 1e6, without * 1e6))
        goal = workload.goal
        if workload.build is hits:
            goal *= max(1.0, loop.host_floor(steps[-1]) * 1e6 / min(run.floor_p50_us for run in runs))
        if device.type != "cpu":
            steps = loop.steps()[:_PROFILED_STEPS]
            saves = measure_saves(
                workload.letter, lambda: loop.with_cache(steps, whole=False), device, loop.step_bytes()
            )
        loop.driver.start(loop.maker.end())
    finally:
        loop.driver.cache.shutdown()
    title = f"{workload.title}, step with / without"
    return Measured(workload.letter, title, round(goal, 2), runs, loop.checked.rows, loop.checked.wrong), saves
