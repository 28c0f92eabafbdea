"""Runs a workload on the cache and on the floor, in turns, and checks every row that either delivers."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence

import torch

from palimpsest.bench.driver import Checked, Driver
from palimpsest.bench.floors import Floor
from palimpsest.bench.results import Measured, Repeat
from palimpsest.bench.rows import LiveBuffers, RowMaker
from palimpsest.bench.steps import Part, Step
from palimpsest.bench.workloads import Maker, Sizes, Workload, reuse
from palimpsest.prefix_cache import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig
from palimpsest.trace import Sink

_FILL_TOKENS = 2048
_NS_PER_US = 1e3


def p50_us(times_ns: Sequence[int]) -> float:
    """The median of nanoseconds, in microseconds."""
    return statistics.median(times_ns) / _NS_PER_US


class Bench:
    """A cache and a floor for one workload, each with its pool written full once."""

    def __init__(self, workload: Workload, sizes: Sizes, *, block_size: int = 16, trace: Sink | None = None) -> None:
        self.workload, self.sizes = workload, sizes
        self.maker = Maker(sizes.num_blocks, block_size)
        rows = RowMaker(workload.layouts)
        fill = sizes.hit or min(_FILL_TOKENS, sizes.num_blocks * block_size)
        #: tokens of the largest step, and of the largest step's prompts
        most = max(fill, sizes.requests * max(sizes.tokens, sizes.hit if workload.build is reuse else 0))
        out_rows = max(most, sizes.requests * (sizes.hit + sizes.tokens))
        self.live = LiveBuffers(rows, most)
        self.checked, self.floor_checked = Checked(rows), Checked(rows)
        #: rows of deferred keys that were read back after their end
        self.read_back = Checked(rows)
        self.floor = Floor(self.live, sizes.num_blocks * block_size, most, out_rows, workload.deferred)
        policy = ModelCachePolicy(
            needs_full_hidden_states=HIDDEN_KEY in workload.layouts,
            deferred_keys=workload.deferred,
            per_token_keys=frozenset(workload.layouts) - {HIDDEN_KEY} - workload.deferred,
        )
        config = PrefixCacheConfig(num_blocks=sizes.num_blocks, block_size=block_size, staging_capacity_tokens=most)
        self.driver = Driver(config, policy, self.live, trace=trace)
        for step in self.maker.fill(fill):
            self.floor_step(step)
            self.cache_step(step)
        self.end()

    # ------------------------------------------------------------------ one step

    def floor_step(self, step: Step) -> int:
        """A step of the floor; its nanoseconds."""
        self.live.forward(step.computed)
        taken = self.floor.save(step) + self.floor.deliver(step)
        self._check_floor(step)
        return taken

    def cache_step(self, step: Step, checked: Checked | None = None) -> int:
        """A step of the cache; the nanoseconds of its three calls. Its rows are counted in `checked`, or with all."""
        taken = self.driver.start(step)
        if self.workload.forward_s:
            time.sleep(self.workload.forward_s)
        self.live.forward(step.computed)
        taken += self.driver.save(step) + self.driver.deliver(step)
        (checked or self.checked).take(step, self.driver.take(step))
        return taken

    def end(self) -> None:
        """End all requests; a step without a forward."""
        self.driver.start(self.maker.end())

    def _check(self, step: Step) -> None:
        self.checked.take(step, self.driver.take(step))

    def _check_floor(self, step: Step) -> None:
        self.floor_checked.take(step, {key: self.floor.outputs(key, step) for key in self.live.buffers})

    # ------------------------------------------------------------------ a repeat

    def repeat(self) -> dict[str, Repeat]:
        """Run the workload's steps once on the floor and once on the cache; by name, what one step took."""
        steps = self.workload.build(self.maker, self.sizes)
        gc.collect()
        if self.workload.build is reuse:
            return self._repeat_reuse(steps)
        floor = [self.floor_step(step) for step in steps]
        cache = [self.cache_step(step) for step in steps]
        repeats = {self.workload.letter: Repeat(p50_us(cache), p50_us(floor))}
        if self.workload.finish_goal is not None:
            repeats[f"{self.workload.letter} finish"] = self._finish(steps)
        else:
            self.end()
        return repeats

    def _finish(self, steps: list[Step]) -> Repeat:
        """End requests whose rows are all deferred, then read some of them as a hit."""
        (key,) = self.workload.deferred
        slots = torch.cat([step.slots for step in steps])
        floor = self.floor.finish(key, slots, torch.zeros(len(slots), *self.workload.layouts[key].row_shape))
        written = [part for part in steps[-1].parts if part.start + part.count >= self.maker.block_size]
        cache = self.driver.start(self.maker.end())
        self._read_back(written[:4])
        return Repeat(cache / _NS_PER_US, floor / _NS_PER_US)

    def _read_back(self, written: list[Part]) -> None:
        """Hit the first block of requests that have ended, and check its rows."""
        size, last = self.maker.block_size, self.maker.num_blocks
        readers = [
            self.maker.new([part.blocks[0], last - 1 - number], size, 1, source=part)
            for number, part in enumerate(written)
        ]
        self.cache_step(self.maker.step(readers), self.read_back)
        self.end()

    def _repeat_reuse(self, steps: list[Step]) -> dict[str, Repeat]:
        threes = list(zip(steps[::3], steps[1::3], steps[2::3], strict=True))
        floor = [self._reuse_floor(*three) for three in threes]
        cache = [self._reuse_cache(*three) for three in threes]
        self.end()
        return {self.workload.letter: Repeat(p50_us(cache), p50_us(floor))}

    def _reuse_floor(self, writers: Step, readers: Step, takers: Step) -> int:
        self.floor_step(writers)
        self.live.forward(readers.computed)
        taken = self.floor.save(readers, page=0)
        self.live.forward(takers.computed)
        taken += self.floor.save(takers, page=1, preserve=torch.cat(readers.hit_slots))
        taken += self.floor.deliver(readers, page=0, preserved=True)
        self._check_floor(readers)
        taken += self.floor.deliver(takers, page=1)
        self._check_floor(takers)
        return taken

    def _reuse_cache(self, writers: Step, readers: Step, takers: Step) -> int:
        """The prefetch thread is held until the blocks of what it should fetch have been taken."""
        self.cache_step(writers)
        gate = self.driver.sync.hold()
        try:
            taken = self.driver.start(readers)
            self.live.forward(readers.computed)
            taken += self.driver.save(readers)
            reads = self.driver.saved
            taken += self.driver.start(takers)
            self.live.forward(takers.computed)
            taken += self.driver.save(takers)
        finally:
            gate.set()
        takes = self.driver.saved
        taken += self.driver.deliver(readers, reads)
        self._check(readers)
        taken += self.driver.deliver(takers, takes)
        self._check(takers)
        return taken


def measure(workload: Workload, *, quick: bool, repeats: int) -> list[Measured]:
    """Run a workload `repeats` times after one that does not count; its figures, and those of its finish."""
    bench = Bench(workload, workload.quick if quick else workload.sizes)
    try:
        bench.repeat()
        runs = [bench.repeat() for _ in range(repeats)]
    finally:
        bench.driver.close()
    if bench.floor_checked.wrong:
        raise AssertionError(f"the floor of {workload.letter} delivered {bench.floor_checked.wrong} wrong rows")
    letter, title = workload.letter, workload.title
    of_steps = [run[letter] for run in runs]
    measured = [Measured(letter, title, workload.goal, of_steps, bench.checked.rows, bench.checked.wrong)]
    if workload.finish_goal is not None:
        name, title = f"{letter} finish", f"{title.split(',')[0]}, the end of all"
        back = bench.read_back
        measured.append(Measured(name, title, workload.finish_goal, [run[name] for run in runs], back.rows, back.wrong))
    return measured
