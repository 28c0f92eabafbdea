"""One step of the sparse runner: what is computed, and what the mirror is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from palimpsest.host_mirror import (
    MirrorBatch,
    PageResidency,
    SparseKVPageTransfer,
    SparseKVRowMirror,
    StepCommand,
    StepMetadata,
)
from palimpsest.kv_cache import KVCacheBlockCopy
from palimpsest.runners.sparse.model import IntArray
from palimpsest.runners.sparse.requests import Sequence


@dataclass(frozen=True)
class Share:
    """One request's rows in a step: positions `start` on, for `tokens`; the last `drafts` of them may be rejected."""

    sequence: Sequence
    start: int
    tokens: tuple[int, ...]
    drafts: int

    @property
    def stop(self) -> int:
        """One after its last position."""
        return self.start + len(self.tokens)


@dataclass
class SparsePlan:
    """What the scheduler decided for a step."""

    number: int
    shares: list[Share] = field(default_factory=list)
    copies: list[KVCacheBlockCopy] = field(default_factory=list)
    transfers: list[SparseKVPageTransfer] = field(default_factory=list)
    #: host blocks with a new tenant
    recycled: list[int] = field(default_factory=list)
    residency: dict[str, list[PageResidency]] = field(default_factory=dict)
    #: states that requests came to, before anything else of the step
    arrived: list[tuple[int, Sequence]] = field(default_factory=list)
    imports: list[Sequence] = field(default_factory=list)

    @property
    def deferred(self) -> bool:
        """Rows may be rejected, or every request computes one."""
        return any(share.drafts for share in self.shares) or all(len(share.tokens) == 1 for share in self.shares)

    def metadata(self, block_rows: int) -> StepMetadata:
        """What the mirror is told."""
        return StepMetadata(
            host_block_copies=self.copies,
            command=StepCommand(tuple(self.transfers)) if self.transfers else None,
            source_block_ids=self.recycled,
            row_mirrors={share.sequence.req_id: row_mirrors(share, block_rows) for share in self.shares},
            all_context_pages_resident=False,
            residency_updates=self.residency,
        )

    def batch(self, block_rows: int) -> MirrorBatch:
        """Its rows, in the order of the shares."""
        states = np.array([share.sequence.state for share in self.shares], dtype=np.int64)
        slots = [row_slots(share.sequence, np.arange(share.start, share.stop), block_rows) for share in self.shares]
        counts = [len(share.tokens) for share in self.shares]
        return MirrorBatch(
            states=states,
            row_states=np.repeat(states, counts),
            host_slots=np.concatenate([host for host, _ in slots]),
            resident_slots=np.concatenate([resident for _, resident in slots], axis=1),
            deferred=self.deferred,
        )


def row_slots(sequence: Sequence, positions: IntArray, block_rows: int) -> tuple[IntArray, IntArray]:
    """Host slots and resident slots [sources, rows] of positions whose pages are on the device."""
    pages, offsets = positions // block_rows, positions % block_rows
    host = np.array([sequence.host_blocks[page] for page in pages], dtype=np.int64) * block_rows + offsets
    blocks = np.array([sequence.resident[page] for page in pages.tolist()], dtype=np.int64).T
    return host, blocks * block_rows + offsets


def row_mirrors(share: Share, block_rows: int) -> tuple[SparseKVRowMirror, ...]:
    """Where a share's rows go, a mirror for each page."""
    mirrors: list[SparseKVRowMirror] = []
    position = share.start
    while position < share.stop:
        stop = min(share.stop, (position // block_rows + 1) * block_rows)
        host, resident = row_slots(share.sequence, np.array([position]), block_rows)
        mirrors.append(SparseKVRowMirror(tuple(resident[:, 0].tolist()), int(host[0]), stop - position))
        position = stop
    return tuple(mirrors)
