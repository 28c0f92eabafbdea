"""One rank's runner in a scenario of the host mirror, and the requests that it serves.

A row is (request, position, layer, step). Where pages lie says the scenario; nothing is derived from a slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palimpsest.host_mirror import (
    HostMirror,
    MirrorBatch,
    SparseKVPageTransfer,
    SparseKVRowMirror,
    StepCommand,
    StepMetadata,
)

if TYPE_CHECKING:
    from .mirror_script import MirrorScript

ROWS, WIDTH = 2, 4
TARGET, DRAFT = 0, 1


class Request:
    """A request's pages: host blocks, and blocks on the device."""

    def __init__(self, number: int, host: list[int], resident: list[int]) -> None:
        self.number, self.host, self.resident = number, host, resident

    def host_slots(self, positions: range) -> list[int]:
        """Where rows lie on the host."""
        return [self.host[at // ROWS] * ROWS + at % ROWS for at in positions]

    def slots(self, positions: range) -> list[int]:
        """Where rows lie on the device."""
        return [self.resident[at // ROWS] * ROWS + at % ROWS for at in positions]

    def move(self, number: int, page: int, *, after: bool = False) -> SparseKVPageTransfer:
        """A page goes to the host, in front of the forward or `after` it."""
        return SparseKVPageTransfer(number, self.host[page], (self.resident[page],), after)

    def restore(self, number: int, page: int) -> SparseKVPageTransfer:
        """A page comes back."""
        return SparseKVPageTransfer(number, self.host[page], (self.resident[page],), False, True)


class Driver:
    """One rank's runner."""

    def __init__(self, script: MirrorScript, mirror: HostMirror) -> None:
        self.script, self.mirror, self.step_number = script, mirror, 0

    def start(self, *transfers: SparseKVPageTransfer, **metadata: Any) -> None:
        """Begin a step."""
        self.step_number += 1
        command = StepCommand(transfers) if transfers else None
        given = StepMetadata(command=command, **metadata)
        self.script.call("start_step", lambda: self.mirror.start_step(given))

    def step(
        self, request: Request, positions: range, *transfers: SparseKVPageTransfer, accepted: int | None = None
    ) -> None:
        """A whole step of a request. `accepted`: so many of its rows stand; without, all and at once."""
        pairs = zip(request.slots(positions), request.host_slots(positions), strict=True)
        mirrors = tuple(SparseKVRowMirror((source,), host, 1) for source, host in pairs)
        self.start(*transfers, row_mirrors={"r": mirrors})
        deferred = accepted is not None
        self.mirror.begin_forward(self.batch(request, positions, deferred))
        self.write(TARGET, request, positions)
        kept = len(positions) if accepted is None else accepted
        mask = np.array([at < kept for at in range(len(positions))], dtype=np.int64)
        self.script.call("finish_forward", lambda: self.mirror.finish_forward(mask if deferred else None))
        stands = range(positions.start, positions.start + kept)
        self.mirror.begin_draft(self.batch(request, stands, deferred))
        self.write(DRAFT, request, stands)
        self.script.call("finish_draft", self.mirror.finish_draft)

    def write(self, layer: int, request: Request, positions: range) -> None:
        """A layer's rows."""
        rows = [[float(n) for n in (request.number, at, layer, self.step_number)] for at in positions]
        made = torch.tensor(rows).reshape(-1, WIDTH)
        self.script.call("write", lambda: self.mirror.write(layer, made))

    def read(self, request: Request, positions: list[int]) -> None:
        """A step that only selects rows off the device; what attention gets must be what stands."""
        at = range(len(request.host) * ROWS - 1, len(request.host) * ROWS)
        self.mirror.begin_forward(self.batch(request, at, deferred=True))
        self.mirror.select(TARGET, np.array([positions], dtype=np.int64))
        got = self.script.call("gather", lambda: self.mirror.gather(TARGET))[0].tolist()
        want = [self.script.stands[request.host_slots(range(p, p + 1))[0]] for p in positions]
        if [tuple(row[:2]) for row in got] != want:
            self.script.wrong(f"attention gets rows {got} and not {want}", "NoRecycledHotRow")
        self.script.call("finish_forward", self.mirror.finish_forward)

    def import_rows(self, request: Request, positions: range) -> None:
        """Rows that were computed elsewhere."""
        slots = np.array(request.host_slots(positions), dtype=np.int64)
        self.script.stands.update(
            (slot, (float(request.number), float(at))) for slot, at in zip(slots.tolist(), positions, strict=True)
        )
        for layer in (TARGET, DRAFT):
            rows = torch.tensor([[float(n) for n in (request.number, at, layer, 0)] for at in positions])
            self.script.call("import_rows", lambda: self.mirror.import_rows(layer, slots, rows))  # noqa: B023

    def take(self) -> list[int]:
        """What has ended."""
        taken: list[int] = self.script.call("take", self.mirror.take_completed_transfers)
        return taken

    def idle_until(self, *transfers: int) -> None:
        """Idle steps until these transfers are acknowledged: two at most, if the copy stream goes on in between."""
        left = set(transfers) - set(self.take())
        for _ in range(2):
            if not left:
                return
            self.start()
            self.script.scheduler.settle()
            left -= set(self.take())
        if left:
            self.script.wrong(f"transfers {sorted(left)} are never acknowledged", "EveryTransferEnds")

    def batch(self, request: Request, positions: range, deferred: bool) -> MirrorBatch:
        count = len(positions)
        return MirrorBatch(
            states=np.zeros(1, dtype=np.int64),
            row_states=np.zeros(count, dtype=np.int64),
            host_slots=np.array(request.host_slots(positions), dtype=np.int64),
            resident_slots=np.array([request.slots(positions)], dtype=np.int64),
            deferred=deferred,
        )
