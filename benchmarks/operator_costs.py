"""What row checks, metrics and the flight recorder cost: `python benchmarks/operator_costs.py`, quiet machine, minutes.

Steps of the workloads of `palimpsest bench`, run in turns on a cache without them and on one with each. The fastest
step is what to compare on a busy machine. Every delivered row is checked, as in the bench.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from palimpsest.bench.device import DEVICE_WORKLOADS, StepLoop
from palimpsest.bench.driver import Driver
from palimpsest.bench.measure import Bench
from palimpsest.bench.workloads import WORKLOADS, Sizes, Workload
from palimpsest.prefix_cache.interface import RowChecks

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "nothing, again": {},
    "digest": {"row_checks": RowChecks.DIGEST},
    "poison": {"row_checks": RowChecks.POISON},
    "flight recorder": {"flight_recorder_events": 4096},
    "metrics, a scrape per step": {},
}
_FILL_TOKENS = 2048
_NUM_BLOCKS, _STEPS = 1024, 40


class Variant:
    """A workload on a cache with other options."""

    def __init__(self, workload: Workload, sizes: Sizes, name: str) -> None:
        self.bench = Bench(workload, sizes)
        plain = self.bench.driver
        config = dataclasses.replace(plain.cache.config, **VARIANTS[name])
        self.bench.driver = Driver(config, plain.cache._policy, self.bench.live)
        plain.close()
        for step in self.bench.maker.fill(sizes.hit or min(_FILL_TOKENS, sizes.num_blocks * config.block_size)):
            self.bench.cache_step(step)
        self.bench.end()
        self.times_ns: list[int] = []
        if name.startswith("metrics"):
            from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415  an extra

            from palimpsest.metrics import export  # noqa: PLC0415

            registry = CollectorRegistry()
            export(self.bench.driver.cache, registry=registry)
            start = self.bench.driver.start

            def scraped(step: Any) -> int:
                generate_latest(registry)  # not on the clock: a scrape runs on another thread
                return start(step)

            self.bench.driver.start = scraped  # type: ignore[method-assign]

    def repeat(self) -> None:
        """Run the workload's steps once more."""
        steps = self.bench.workload.build(self.bench.maker, self.bench.sizes)
        self.times_ns += [self.bench.cache_step(step) for step in steps]
        self.bench.end()


def on_device(letter: str, device: torch.device, args: argparse.Namespace) -> None:
    """Print a line per variant: whole steps, with a builder a step behind, over the same steps without the cache."""
    workload = DEVICE_WORKLOADS[letter]
    sizes = workload.quick if args.quick else workload.sizes
    print(workload.title)
    for name in [name for name in VARIANTS if not name.startswith("metrics")]:
        loop = StepLoop(workload, sizes, device, quick=args.quick)
        plain = loop.driver
        config = dataclasses.replace(plain.cache.config, **VARIANTS[name])
        loop.driver = Driver(config, plain.cache._policy, loop.live, eager=False)
        plain.cache.shutdown()
        loop.with_cache(
            loop.maker.fill(sizes.hit or min(_FILL_TOKENS, sizes.num_blocks * config.block_size)), whole=True
        )
        ratios = []
        for _ in range(args.repeats + 1):
            steps = loop.steps()
            without = loop.without_cache(steps)
            ratios.append(loop.with_cache(steps, whole=False) / without)
        corrupt, wrong = loop.driver.cache.stats.rows_corrupt, loop.checked.wrong
        print(f"  {name:28} {min(ratios[1:]):6.3f} to {max(ratios[1:]):6.3f} x  {wrong} rows wrong, {corrupt} reported")
        loop.driver.cache.shutdown()


def main() -> None:
    """Print a line per workload and variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", help="a, b and c; on an accelerator all of them")
    parser.add_argument("--device", default="cpu", help="where the live buffers are (cpu)")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU (1)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, which show that it works and no speed")
    args = parser.parse_args()
    if args.device != "cpu":
        for letter in args.workloads or DEVICE_WORKLOADS:
            on_device(letter, torch.device(args.device), args)
        return
    torch.set_num_threads(args.threads)
    for letter in args.workloads or ["a", "b", "c"]:
        workload = WORKLOADS[letter]
        # All variants are there at once: small pools, which cost a step the same.
        sizes = (
            workload.quick if args.quick else dataclasses.replace(workload.sizes, num_blocks=_NUM_BLOCKS, steps=_STEPS)
        )
        variants = {name: Variant(workload, sizes, name) for name in VARIANTS}
        for _ in range(args.repeats):
            for variant in variants.values():
                variant.repeat()
        print(workload.title)
        plain = min(variants["nothing"].times_ns + variants["nothing, again"].times_ns)
        for name, variant in variants.items():
            fastest, median = min(variant.times_ns), statistics.median(variant.times_ns)
            times = f"fastest {fastest / 1e3:8,.0f} us {fastest / plain:6.2f} x   median {median / 1e3:8,.0f} us"
            print(f"  {name:28} {times}   {variant.bench.checked.wrong} rows wrong")
            variant.bench.driver.close()


if __name__ == "__main__":
    main()
