"""How fast the host mirror takes a prefill to the host, beside one page-locked copy of the same bytes.

    python benchmarks/mirrored_prefill.py

8,192 rows of 60 layers of 1,152 bytes (566 MB) on a CUDA device; prints both rates and their ratio as JSON.

Then steps with a forward of 15 ms, whose layers report one after the other, over the same forward without a
mirror; and that forward with plain copies of the same bytes in the mirror's order (a layer's rows behind the layer, the
next forward behind the last copy). The three are taken in turns on a device that is warm, since one under load clocks
down for seconds. `step_ms` is the wall time of a step of many with one wait at the end, each ratio the rounds' median.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from palimpsest.host_mirror import HostMirror, HostMirrorConfig, LayerSpec, MirrorBatch, SparseKVRowMirror, StepMetadata
from palimpsest.host_mirror.runtime import allocate_pinned_host_pool, release_pinned_state

LAYERS, ROWS, WIDTH, BLOCK = 60, 8192, 576, 64
REPEATS, STEPS, ROUNDS = 8, 20, 12
FORWARD_S, WARM_S = 0.015, 2.0


def main() -> None:
    """Measure, best of the repeats, and print."""
    whole = torch.randn(LAYERS, ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
    landing, registered = allocate_pinned_host_pool(whole.nbytes)
    mirror = HostMirror(configuration())
    mirror.initialize()
    try:
        copied = min(timed(lambda: page_locked_copy(landing, whole)) for _ in range(REPEATS))
        mirrored = min(mirror_prefill(mirror) for _ in range(REPEATS))
        overlapped = overlap(
            mirror, Layer(FORWARD_S / LAYERS), whole, landing.view(torch.bfloat16).view(LAYERS, ROWS, WIDTH)
        )
    finally:
        mirror.shutdown()
        release_pinned_state([], [registered])
    rates = [round(whole.nbytes / seconds / 1e9, 1) for seconds in (copied, mirrored)]
    found = {"page_locked_gbps": rates[0], "mirrored_gbps": rates[1], "ratio": round(copied / mirrored, 3)}
    print(json.dumps({**found, **overlapped}))


def configuration() -> HostMirrorConfig:
    """A mirror of one request's pages."""
    return HostMirrorConfig(
        layers=tuple(LayerSpec(f"layers.{n}", WIDTH, leader=n == 0) for n in range(LAYERS)),
        block_rows=BLOCK,
        num_host_blocks=ROWS // BLOCK,
        num_resident_blocks=ROWS // BLOCK,
        max_requests=1,
        max_pages=ROWS // BLOCK,
        max_rows=ROWS,
        top_k=1,
        hot_rows=1,
        device="cuda",
        timeout_s=20.0,
    )


def page_locked_copy(landing: torch.Tensor, whole: torch.Tensor) -> None:
    """The floor: one copy of all bytes."""
    landing.view(torch.bfloat16).copy_(whole.flatten(), non_blocking=True)


def begin_step(mirror: HostMirror) -> None:
    """A step that writes every row."""
    slots = torch.arange(ROWS).numpy()
    pages = tuple(SparseKVRowMirror((start,), start, BLOCK) for start in range(0, ROWS, BLOCK))
    mirror.start_step(StepMetadata(row_mirrors={"r": pages}))
    mirror.begin_forward(MirrorBatch(slots[:1], slots * 0, slots, slots[None]))


def mirror_prefill(mirror: HostMirror) -> float:
    """Seconds from the layers' reports to the last row on the host."""
    begin_step(mirror)

    def report() -> None:
        for handle in mirror.worker.cache_handles:
            handle.finish_kv_update()
        mirror.finish_forward()
        mirror.settle()

    return timed(report)


class Layer:
    """Work on a warm device that takes `seconds` on average: whole matrix products, in some calls one more."""

    def __init__(self, seconds: float) -> None:
        self._x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) / 45
        self._times, self._due = 4000.0, 0.0
        until, taken = time.perf_counter() + WARM_S, 0.0
        while time.perf_counter() < until:
            taken = timed(self)
        self._times *= seconds / taken

    def __call__(self) -> None:
        y = self._x
        self._due += self._times
        while self._due >= 1:
            y, self._due = y @ self._x, self._due - 1


def overlap(mirror: HostMirror, layer: Layer, whole: torch.Tensor, landing: torch.Tensor) -> dict[str, Any]:
    """Milliseconds of a step without the mirror and with it, and the ratios of steps to those without."""
    side, ready = torch.cuda.Stream(), [torch.cuda.Event() for _ in range(LAYERS)]

    def without() -> None:
        for _ in range(LAYERS):
            layer()

    def plain() -> None:
        for number in range(LAYERS):
            layer()
            ready[number].record()
            side.wait_event(ready[number])
            with torch.cuda.stream(side):
                landing[number].copy_(whole[number], non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)

    def mirrored() -> None:
        begin_step(mirror)
        for handle in mirror.worker.cache_handles:
            layer()
            handle.finish_kv_update()
        mirror.finish_forward()

    kinds = without, plain, mirrored
    rounds = [[0.0] * len(kinds) for _ in range(ROUNDS)]
    for number, times in enumerate(rounds):
        for turn in range(len(kinds)):
            which = (number + turn) % len(kinds)
            times[which] = timed(lambda step=kinds[which]: [step() for _ in range(STEPS)]) / STEPS
    mirror.settle()
    return summary(rounds[1:])


def summary(rounds: list[list[float]]) -> dict[str, Any]:
    """What the rounds, each of seconds without, with plain copies and mirrored, say."""
    alone, _, mirrored = (statistics.median(times) for times in zip(*rounds, strict=True))
    ratios = sorted(with_mirror / without for without, _, with_mirror in rounds)
    return {
        "step_ms": round(1e3 * mirrored, 2),
        "step_ms_without": round(1e3 * alone, 2),
        "step_ratio": round(statistics.median(ratios), 3),
        "step_ratio_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
        "step_ratio_of_plain_copies": round(statistics.median(plain / without for without, plain, _ in rounds), 3),
    }


def timed(work: Callable[[], Any]) -> float:
    """Seconds until the device has done `work`."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
