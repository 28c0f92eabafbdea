"""How fast the host mirror takes a prefill to the host, beside one page-locked copy of the same bytes.

    python benchmarks/mirrored_prefill.py

8,192 rows of 60 layers of 1,152 bytes (566 MB) on a CUDA device; prints both rates and their ratio as JSON, and a
step with a forward of 15 ms, whose layers report one after the other, over the same forward without a mirror.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from palimpsest.host_mirror import HostMirror, HostMirrorConfig, LayerSpec, MirrorBatch, SparseKVRowMirror, StepMetadata
from palimpsest.host_mirror.runtime import allocate_pinned_host_pool, release_pinned_state

LAYERS, ROWS, WIDTH, BLOCK = 60, 8192, 576, 64
REPEATS, STEPS = 8, 20
FORWARD_S = 0.015


def main() -> None:
    """Measure, best of the repeats, and print."""
    whole = torch.empty(LAYERS, ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
    landing, registered = allocate_pinned_host_pool(whole.nbytes)
    mirror = HostMirror(configuration())
    mirror.initialize()
    try:
        copied = min(timed(lambda: page_locked_copy(landing, whole)) for _ in range(REPEATS))
        mirrored = min(mirror_prefill(mirror) for _ in range(REPEATS))
        overlapped = overlap(mirror, Layer(FORWARD_S / LAYERS))
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
    """Work on the device that takes about `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) / 45
        self._times = 200
        self()
        self._times = max(1, round(200 * seconds / timed(self)))

    def __call__(self) -> None:
        y = self._x
        for _ in range(self._times):
            y = y @ self._x


def overlap(mirror: HostMirror, layer: Layer) -> dict[str, float]:
    """Milliseconds of a step with the mirror, and without it, and their ratio."""

    def without() -> None:
        for _ in range(STEPS * LAYERS):
            layer()

    def with_mirror() -> None:
        for _ in range(STEPS):
            begin_step(mirror)
            for handle in mirror.worker.cache_handles:
                layer()
                handle.finish_kv_update()
            mirror.finish_forward()

    alone = min(timed(without) for _ in range(2))
    beside = min(timed(with_mirror) for _ in range(2))
    mirror.settle()
    milliseconds = [round(1e3 * seconds / STEPS, 2) for seconds in (beside, alone)]
    return {"step_ms": milliseconds[0], "step_ms_without": milliseconds[1], "step_ratio": round(beside / alone, 3)}


def timed(work: Callable[[], Any]) -> float:
    """Seconds until the device has done `work`."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
