"""What row checks, metrics and the flight recorder cost: `python benchmarks/operator_costs.py`, quiet machine, minutes.

Steps of the workloads of `palimpsest bench`, run in turns on a cache without them and on one with each; the best
repeat of each counts. Every delivered row is checked by its identity, as in the bench.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from prometheus_client import CollectorRegistry, generate_latest

from palimpsest.bench.driver import Driver
from palimpsest.bench.measure import Bench
from palimpsest.bench.workloads import WORKLOADS, Sizes, Workload
from palimpsest.metrics import export
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
        self.best_us = float("inf")
        if name.startswith("metrics"):
            registry = CollectorRegistry()
            export(self.bench.driver.cache, registry=registry)
            start = self.bench.driver.start

            def scraped(step: Any) -> int:
                generate_latest(registry)  # not on the clock: a scrape runs on another thread
                return start(step)

            self.bench.driver.start = scraped  # type: ignore[method-assign]

    def repeat(self) -> None:
        """Run the workload once more."""
        for repeat in list(self.bench.repeat().values())[:1]:
            self.best_us = min(self.best_us, repeat.p50_us)


def main() -> None:
    """Print a line per workload and variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["a", "b", "c"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, which show that it works and no speed")
    args = parser.parse_args()
    torch.set_num_threads(2)
    for letter in args.workloads:
        workload = WORKLOADS[letter]
        sizes = workload.quick if args.quick else workload.sizes
        variants = {name: Variant(workload, sizes, name) for name in VARIANTS}
        for _ in range(args.repeats):
            for variant in variants.values():
                variant.repeat()
        print(workload.title)
        plain = min(variants["nothing"].best_us, variants["nothing, again"].best_us)
        for name, variant in variants.items():
            wrong = variant.bench.checked.wrong
            print(f"  {name:28} {variant.best_us:10,.0f} us  {variant.best_us / plain:6.2f} x  {wrong} rows wrong")
            variant.bench.driver.close()


if __name__ == "__main__":
    main()
