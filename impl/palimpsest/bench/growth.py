"""How a decode step grows, with slots and with live requests, and what tracing adds to one."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from palimpsest.bench.measure import Bench, p50_us
from palimpsest.bench.results import GrowthPoint, TracingCost
from palimpsest.bench.workloads import TALKER, WORKLOADS, Sizes, Workload, decode
from palimpsest.prefix_cache import HIDDEN_KEY, KeyLayout
from palimpsest.trace import MemorySink, NdjsonSink, Sink

#: narrow rows: the copies are small, and what is left is the bookkeeping
_NARROW = {HIDDEN_KEY: KeyLayout(torch.bfloat16, (64,)), TALKER: KeyLayout(torch.bfloat16, (32,))}
#: 1,000 slots have a block for each of 64 requests
_BLOCK_SIZE = 8
_STEPS, _QUICK_STEPS = 60, 10

#: the forward of a step that tracing is measured beside, in seconds
STEP_S = 0.006
#: sink -> the most that it may add, in percent of such a step
TRACING_GOALS = {"off, again": 0.0, "memory": 5.0, "file": 10.0}


def growth(*, quick: bool, repeats: int) -> list[GrowthPoint]:
    """Decode steps over three ranges: the pool's slots, the requests that decode, and those that live and wait."""
    requests = 8 if quick else 64
    slots = [1000, 2000] if quick else [1000, 10_000, 100_000]
    live = [8, 16] if quick else [16, 64, 256, 1000, 2000]
    points = [_point("slots", count, requests, requests, quick, repeats) for count in slots]
    points += [_point("decoding", slots[-1], count, count, quick, repeats) for count in live]
    points += [_point("waiting", slots[-1], count, requests, quick, repeats) for count in live if count >= requests]
    return points


def _point(sweep: str, slots: int, live: int, requests: int, quick: bool, repeats: int) -> GrowthPoint:
    steps = _QUICK_STEPS if quick else _STEPS
    # at most six blocks for each request, so that those that wait have room beside those that decode
    each = min(-(-steps // _BLOCK_SIZE), slots // _BLOCK_SIZE // (live + 1))
    sizes = Sizes(requests, 1, min(steps, each * _BLOCK_SIZE), num_blocks=slots // _BLOCK_SIZE)
    bench = Bench(Workload("growth", "", 0.0, _NARROW, decode, sizes, sizes), sizes, block_size=_BLOCK_SIZE)
    try:
        runs = [_run(bench, live - requests, each) for _ in range(1 + repeats)][1:]
        wrong = bench.checked.wrong
    finally:
        bench.driver.close()
    return GrowthPoint(sweep, slots, live, requests, min(run[0] for run in runs), min(run[1] for run in runs), wrong)


def _run(bench: Bench, waiting: int, each: int) -> tuple[float, float]:
    """The medians of cache and floor over steps of unchanged batches, while `waiting` requests live besides."""
    first = bench.sizes.requests * each
    idle = [
        bench.maker.new(list(range(first + number * each, first + (number + 1) * each)), 0, 1)
        for number in range(waiting)
    ]
    if idle:
        bench.cache_step(bench.maker.step(idle))
    bench.maker.alive = []
    steps = decode(bench.maker, bench.sizes)
    gc.collect()
    floor = [bench.floor_step(step) for step in steps]
    cache = [bench.cache_step(step) for step in steps]
    bench.maker.alive = [*bench.maker.alive, *idle]
    bench.end()
    return p50_us(cache[1:]), p50_us(floor[1:])


def tracing(*, quick: bool, repeats: int) -> list[TracingCost]:
    """The decode step of workload a without a sink, once more without, into memory, and into a file, in turns."""
    workload = WORKLOADS["a"]
    sizes = replace(workload.quick if quick else workload.sizes, steps=_QUICK_STEPS if quick else _STEPS)
    sizes = replace(sizes, num_blocks=min(sizes.num_blocks, 1024))
    workload = replace(workload, forward_s=STEP_S)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sinks: dict[str, Callable[[], Sink | None]] = {
            "off": lambda: None,
            "off, again": lambda: None,
            "memory": MemorySink,
            "file": lambda: NdjsonSink(Path(folder) / "trace.ndjson"),
        }
        benches = {name: _traced(workload, sizes, make(), stack) for name, make in sinks.items()}
        best = dict.fromkeys(benches, float("inf"))
        for _ in range(1 + repeats):
            for name, bench in benches.items():
                best[name] = min(best[name], bench.repeat()[workload.letter].p50_us)
    return [
        TracingCost(name, goal, STEP_S * 1e6, best[name], best["off"], benches[name].checked.wrong)
        for name, goal in TRACING_GOALS.items()
    ]


def _traced(workload: Workload, sizes: Sizes, sink: Sink | None, stack: ExitStack) -> Bench:
    if sink is not None:
        stack.callback(sink.close)
    bench = Bench(workload, sizes, trace=sink)
    stack.callback(bench.driver.close)
    return bench
