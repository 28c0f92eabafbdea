"""The specification's variables, as far as a trace of one process can tell them.

A row is known by its *version*: a number for each (rank, step, host slot) that was written or imported; 0 is no row, or
one that the trace does not tell of. Identities that the code logged stand beside versions, by layer.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from ..replay.tables import IntArray

EVENTS = (0, 1)

Pieces = dict[int, tuple[IntArray, IntArray]]
"""By layer: host slots, and the device slots that belong to them."""


class Copy:
    """Rows handed to a copy stream together: where from and to, and the versions that are meant."""

    __slots__ = ("meant", "pieces")

    def __init__(self, pieces: Pieces, meant: dict[int, IntArray]) -> None:
        self.pieces, self.meant = pieces, meant


class Rank:
    """One rank's worker, its streams and its device."""

    __slots__ = (
        "after", "at", "batch", "compute", "copies", "current", "dev", "dirty", "drafts", "enqueued", "handed", "hot",
        "hot_rows", "issued", "layers", "mirrors", "missing", "number", "phase", "places", "reached", "reported",
        "rows", "stale",
    )  # fmt: skip

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        layers = config["layers"]
        slots = config["num_resident_blocks"] * config["block_rows"]
        self.number, self.phase, self.at, self.current = number, "idle", 0, 1
        self.issued, self.reached = dict.fromkeys(EVENTS, 0), dict.fromkeys(EVENTS, 0)
        self.compute: deque[tuple[Any, ...]] = deque()
        self.copies: deque[tuple[Any, ...]] = deque()
        self.dirty = self.drafts = False
        self.dev = [np.zeros(slots, dtype=np.int64) for _ in layers]
        #: host slots that are hot, by index group and state; versions of the hot rows, by layer and (state, slot)
        leaders = sum(layer["leader"] for layer in layers)
        self.hot: list[list[list[int]]] = [[[] for _ in range(config["max_requests"])] for _ in range(leaders)]
        self.hot_rows: list[dict[tuple[int, int], int]] = [{} for _ in layers]
        #: (state, slot) to be fetched and all that is selected, by index group
        self.missing: dict[int, tuple[list[list[int]], list[list[int]]]] = {}
        self.stale: list[int] = []
        self.mirrors: list[dict[str, Any]] = []
        #: version of each host slot written in this step; layers that reported and were handed on in this phase
        self.rows: dict[int, int] = {}
        self.reported: set[int] = set()
        self.handed: set[int] = set()
        #: host slots and states of the phase's batch, and whether it is deferred; by source, its device slots
        self.batch: tuple[list[int], list[int], bool] | None = None
        self.places: dict[int, list[int]] = {}
        #: layers that wrote in this phase
        self.layers: set[int] = set()
        self.after: list[dict[str, Any]] = []
        self.enqueued: list[int] = []


class MirrorState:
    """What all ranks share, and the ghosts."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.layers: list[dict[str, Any]] = config["layers"]
        slots = config["num_host_blocks"] * config["block_rows"]
        self.ranks: dict[int, Rank] = {}
        self.host = [np.zeros(slots, dtype=np.int64) for _ in self.layers]
        self.truth = np.zeros(slots, dtype=np.int64)
        #: identity by layer and version, and all of them by layer
        self.tags: dict[tuple[int, int], tuple[int, ...]] = {}
        self.identities: set[tuple[int, tuple[int, ...]]] = set()
        self.wanted: dict[int, tuple[IntArray, IntArray]] = {}
        self.rejected: set[int] = set()
        self.acked: list[int] = []
        self.imported: set[int] = set()
        #: step and pairs of the writer's last copies of host blocks
        self.copied: tuple[int, list[list[int]]] = 0, []

    def rank(self, number: int) -> Rank:
        """A rank of the trace; it is new with its first event."""
        if number not in self.ranks:
            self.ranks[number] = Rank(number, self.config)
        return self.ranks[number]

    def version(self, writer: int, step: int, host_slot: int) -> int:
        """Of the row that a rank writes in a step; of one that is imported before it, where `writer` is no rank."""
        writers: int = self.config["ranks"] + 1
        return 1 + (step * writers + writer) * self.truth.size + host_slot

    def group_of(self, layer: int) -> int:
        """The index group of a layer."""
        return len([each for each in self.layers[: layer + 1] if each["leader"]]) - 1

    def of_phase(self, *, draft: bool) -> list[int]:
        """The layers that the target model writes, or the draft model."""
        return [number for number, layer in enumerate(self.layers) if layer["draft"] == draft]

    def excerpt(self, rank: Rank | None) -> dict[str, Any]:
        """For a rejection."""
        if rank is None:
            return {"ranks": sorted(self.ranks)}
        return {
            "rank": rank.number, "step": rank.at, "phase": rank.phase, "current": rank.current,
            "issued": dict(rank.issued), "reached": dict(rank.reached), "compute": [item[0] for item in rank.compute],
            "copies": [item[0] for item in rank.copies], "after": [each.get("transfer_id") for each in rank.after],
            "stale": list(rank.stale), "enqueued": list(rank.enqueued),
        }  # fmt: skip
