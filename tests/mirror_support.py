"""Driving a host mirror from a script: one page table, tagged rows, gates on the copy stream, ranks as threads.

A row is (request, position, layer, step). Pages are placed by the test; nothing is derived from a slot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from palimpsest.errors import RankLostError
from palimpsest.host_mirror import (
    HostMirror,
    HostMirrorConfig,
    LayerSpec,
    MirrorBatch,
    SparseKVPageTransfer,
    SparseKVRowMirror,
    StepCommand,
    StepMetadata,
)
from palimpsest.trace import MemorySink
from palimpsest_model_check.replay.machine import replay
from palimpsest_model_check.replay.verdict import Verdict
from tests.support import HASTY_S, PATIENT_S, Gate

ROWS, WIDTH = 4, 4
TARGETS, DRAFT = (0, 1), 2


def config(**options: Any) -> HostMirrorConfig:
    layers = (LayerSpec("layers.0", WIDTH), LayerSpec("layers.1", WIDTH, leader=False))
    if options.pop("draft", True):
        layers += (LayerSpec("draft.0", WIDTH, draft=True),)
    sizes: dict[str, Any] = {
        "block_rows": ROWS, "num_host_blocks": 8, "num_resident_blocks": 6, "max_requests": 3, "max_pages": 4,
        "max_rows": 16, "top_k": 2, "hot_rows": 6, "draft_tokens": 2, "dtype": torch.float32, "timeout_s": PATIENT_S,
    }  # fmt: skip
    return HostMirrorConfig(**{"layers": layers, **sizes, **options})


def identities(_layer: str, rows: torch.Tensor) -> np.ndarray:
    """What the rows of these tests and of the sparse runner say they are: their last columns."""
    return rows[:, -5:].numpy().astype(np.int64)


class Traces:
    """The sinks of the mirrors that a test makes; ranks that are threads of one engine share theirs."""

    def __init__(self) -> None:
        self.sinks: dict[Any, MemorySink] = {}

    def sink(self, config: HostMirrorConfig, ranks: Any) -> MemorySink:
        """The sink of a mirror."""
        key = config.engine_id if getattr(ranks, "size", 1) > 1 else len(self.sinks)
        tag = identities if config.torch_device.type == "cpu" else None  # rows on a device are not waited for
        return self.sinks.setdefault(key, MemorySink(tag))

    def verdicts(self) -> list[Verdict]:
        """What the checker says of each trace that has events."""
        for sink in self.sinks.values():
            sink.close()
        traces = [(str(key), sink.config, sink.events) for key, sink in self.sinks.items() if sink.events]
        return [replay(f"mirror {name}", config, events) for name, config, events in traces]


@contextmanager
def traced_mirrors(device: str = "cpu") -> Iterator[Traces]:
    """Inside, every mirror of a kind of device that is made without a trace has one."""
    traces, make = Traces(), HostMirror.__init__

    def traced(self: HostMirror, config: HostMirrorConfig, **options: Any) -> None:
        if options.get("trace") is None and config.torch_device.type == device:
            options["trace"] = traces.sink(config, options.get("ranks"))
        make(self, config, **options)

    with patch.object(HostMirror, "__init__", traced):
        yield traces


class Pages:
    """One request's pages: host blocks and resident blocks, chosen by the test."""

    def __init__(self, state: int, host: list[int], resident: list[int]) -> None:
        self.state, self.host, self.resident = state, host, resident

    def host_slots(self, positions: range) -> np.ndarray:
        return np.array([self.host[at // ROWS] * ROWS + at % ROWS for at in positions], dtype=np.int64)

    def resident_slots(self, positions: range) -> np.ndarray:
        return np.array([self.resident[at // ROWS] * ROWS + at % ROWS for at in positions], dtype=np.int64)

    def mirrors(self, positions: range) -> tuple[SparseKVRowMirror, ...]:
        pairs = zip(self.resident_slots(positions).tolist(), self.host_slots(positions).tolist(), strict=True)
        return tuple(SparseKVRowMirror((source,), host, 1) for source, host in pairs)

    def transfer(self, number: int, page: int, *, after_forward: bool = False, restore: bool = False):
        return SparseKVPageTransfer(number, self.host[page], (self.resident[page],), after_forward, restore)


def row(request: int, position: int, layer: int, step: int) -> list[float]:
    return [float(request), float(position), float(layer), float(step)]


def rows(request: int, positions: range, layer: int, step: int) -> torch.Tensor:
    return torch.tensor([row(request, at, layer, step) for at in positions])


class Steps:
    """A mirror that does what a test says; shut down at the end of the `with`."""

    def __init__(self, mirror: HostMirror | None = None, **options: Any) -> None:
        self.mirror = mirror or HostMirror(config(**options))
        self.number = 0

    def __enter__(self) -> Steps:
        self.mirror.initialize()
        return self

    def __exit__(self, *exc: object) -> None:
        self.mirror.shutdown()

    def start(self, *transfers: SparseKVPageTransfer, mirrors: Any = None, **metadata: Any) -> None:
        self.number += 1
        command = StepCommand(transfers) if transfers else None
        self.mirror.start_step(StepMetadata(command=command, row_mirrors=mirrors or {}, **metadata))

    def batch(self, pages: Pages, positions: range, *, deferred: bool) -> MirrorBatch:
        count = len(positions)
        return MirrorBatch(
            states=np.array([pages.state], dtype=np.int64),
            row_states=np.full(count, pages.state, dtype=np.int64),
            host_slots=pages.host_slots(positions),
            resident_slots=pages.resident_slots(positions)[None],
            deferred=deferred,
        )

    def target(self, pages: Pages, request: int, positions: range, *, deferred: bool = False) -> None:
        self.mirror.begin_forward(self.batch(pages, positions, deferred=deferred))
        for layer in TARGETS:
            self.mirror.write(layer, rows(request, positions, layer, self.number))

    def drafts(self, pages: Pages, request: int, positions: range, *, deferred: bool = False) -> None:
        self.mirror.begin_draft(self.batch(pages, positions, deferred=deferred))
        self.mirror.write(DRAFT, rows(request, positions, DRAFT, self.number))

    def step(self, pages: Pages, request: int, positions: range, *transfers: Any, accepted: Any = None) -> None:
        """A whole step of one request; `accepted` marks the rows of a deferred batch that stand."""
        self.start(*transfers, mirrors={"r": pages.mirrors(positions)})
        self.forward(pages, request, positions, accepted)

    def forward(self, pages: Pages, request: int, positions: range, accepted: Any = None) -> None:
        """What follows the start of such a step."""
        deferred = accepted is not None
        self.target(pages, request, positions, deferred=deferred)
        self.mirror.finish_forward(None if accepted is None else np.array(accepted, dtype=np.int64))
        kept = range(positions.start, positions.start + (sum(accepted) if accepted is not None else len(positions)))
        if len(self.mirror.config.layers) > DRAFT:
            self.drafts(pages, request, kept, deferred=deferred)
        self.mirror.finish_draft()

    def host(self, layer: int, pages: Pages, positions: range) -> torch.Tensor:
        return self.mirror.host[layer][pages.host_slots(positions)]

    @contextmanager
    def held_copies(self) -> Iterator[Gate]:
        """The copy stream stops here until the gate is opened, or the `with` ends."""
        gate = Gate()
        self.mirror.worker.dma_stream.submit(gate.wait_here)
        try:
            yield gate
        finally:
            gate.open()


class ThreadRanks:
    """Ranks that are threads of this process; `meeting` is shared by all."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, shared: dict[str, list[int]]) -> None:
        self.rank, self.size, self._meeting, self._shared = rank, size, meeting, shared

    def barrier(self) -> None:
        try:
            self._meeting.wait()
        except threading.BrokenBarrierError as error:
            raise RankLostError(f"rank {self.rank} of {self.size} waited for the others") from error

    def from_writer(self, values: list[int]) -> list[int]:
        if self.rank == 0:
            self._shared["values"] = values
        self.barrier()
        found = self._shared["values"]
        self.barrier()
        return found


def thread_ranks(size: int, timeout_s: float = PATIENT_S) -> list[ThreadRanks]:
    meeting, shared = threading.Barrier(size, timeout=timeout_s), {}
    return [ThreadRanks(rank, size, meeting, shared) for rank in range(size)]


__all__ = ["HASTY_S", "PATIENT_S", "Pages", "Steps", "config", "row", "rows", "thread_ranks"]


def pages(state: int = 0, host: tuple[int, ...] = (5, 2, 7), resident: tuple[int, ...] = (3, 0, 4)) -> Pages:
    """A request of three pages that lie in no order."""
    return Pages(state, list(host), list(resident))
