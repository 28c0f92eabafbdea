"""Pending reads: planned hit spans, with the rows preserved for them when their slots are taken over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from palimpsest.errors import PrefixCacheError

if TYPE_CHECKING:
    from palimpsest.prefix_cache.records import FrozenTask, PageEvent

IntArray = np.ndarray
BoolArray = np.ndarray

_IDS = itertools.count(1)


class PendingRead:
    """One key of one request's hit, as it was when it was planned.

    Each row comes from the pool (after the tasks in `join_tids`), from the staged rows of a deferred task
    (`staged_list`), or is absent for good. All fields are guarded by the state lock, except that a reader
    which began the fetch may read those that no longer change: slots, versions, sources.
    """

    __slots__ = (
        "_preserved",
        "_preserved_mask",
        "absent",
        "error",
        "fetching",
        "from_pool",
        "gather_ns",
        "join_tids",
        "key",
        "req_id",
        "rid",
        "slots",
        "staged_list",
        "sums",
        "versions",
    )  # fmt: skip

    def __init__(self, req_id: str, key: str, slots: IntArray, versions: IntArray) -> None:
        self.rid = next(_IDS)
        self.req_id, self.key, self.slots, self.versions = req_id, key, slots, versions
        #: rows read from the pool; None means every row
        self.from_pool: BoolArray | None = None
        #: rows that were absent when planned; None means none
        self.absent: BoolArray | None = None
        self.staged_list: list[tuple[FrozenTask, IntArray]] = []
        self.join_tids: list[int] = []
        self.error: PrefixCacheError | None = None
        self.fetching = False
        #: the row checks' own
        self.sums: tuple[torch.Tensor, PageEvent | None] | None = None
        #: how long its rows were copied
        self.gather_ns = 0
        self._preserved: torch.Tensor | None = None
        self._preserved_mask: BoolArray | None = None

    @property
    def already_staged(self) -> bool:
        """Whether every row was committed in the pool when the read was planned."""
        return self.from_pool is None and not self.join_tids

    def present_rows(self) -> int:
        """How many of the rows are not absent."""
        return int(self.slots.size if self.absent is None else self.slots.size - np.count_nonzero(self.absent))

    @property
    def pool_slots(self) -> IntArray:
        """The slots read from the pool."""
        return self.slots if self.from_pool is None else self.slots[self.from_pool]

    @property
    def preserved(self) -> Mapping[int, torch.Tensor]:
        """The preserved rows by slot number."""
        if self._preserved is None or self._preserved_mask is None:
            return {}
        rows = np.flatnonzero(self._preserved_mask)
        return {int(self.slots[row]): self._preserved[row] for row in rows}

    def preserve(self, rows: IntArray, values: torch.Tensor) -> None:
        """Keep `values` as the rows at positions `rows` of this read."""
        if self._preserved is None:
            self._preserved = values.new_empty((self.slots.size, *values.shape[1:]))
            self._preserved_mask = np.zeros(self.slots.size, dtype=bool)
        assert self._preserved_mask is not None
        if rows.size == self.slots.size:
            self._preserved = values
        else:
            self._preserved[torch.from_numpy(rows)] = values
        self._preserved_mask[rows] = True

    @property
    def preserved_rows(self) -> torch.Tensor | None:
        """The preserved copies, each at the position of its row."""
        return self._preserved

    def preserved_mask(self) -> BoolArray:
        """Which rows have a preserved copy."""
        return np.zeros(self.slots.size, dtype=bool) if self._preserved_mask is None else self._preserved_mask.copy()

    def unpreserved(self, rows: BoolArray) -> BoolArray:
        """Which of `rows` have no preserved copy."""
        return rows if self._preserved_mask is None else rows & ~self._preserved_mask

    def all_preserved(self) -> bool:
        """Whether no row has to be read from the pool any more."""
        mask = self._preserved_mask
        return mask is not None and bool(mask.all() if self.from_pool is None else mask[self.from_pool].all())

    def copy_preserved(self, out: torch.Tensor, rows: BoolArray) -> None:
        """Put the preserved copies of `rows` into `out` at their positions."""
        assert self._preserved is not None
        if rows.all():
            out.copy_(self._preserved)
        else:
            index = torch.from_numpy(np.flatnonzero(rows))
            out[index] = self._preserved[index]


class PendingReads:
    """The reads that are planned and not over, and how many of them need each pool row."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        #: guarded by the state lock
        self._reads: dict[int, PendingRead] = {}
        #: per key, the number of pending reads of each slot's pool row; guarded by the state lock
        self._pins: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def __iter__(self) -> Iterator[PendingRead]:
        return iter(list(self._reads.values()))

    def __contains__(self, read: object) -> bool:
        return isinstance(read, PendingRead) and read.rid in self._reads

    def add(self, read: PendingRead) -> None:
        """Start to hold the rows of `read`."""
        self._reads[read.rid] = read
        if (pins := self._pins.get(read.key)) is None:
            pins = self._pins[read.key] = np.zeros(self._num_slots, dtype=np.int32)
        pins[read.pool_slots] += 1

    def drop(self, read: PendingRead) -> bool:
        """Stop to hold the rows of `read`; False when it was over already."""
        if self._reads.pop(read.rid, None) is None:
            return False
        self._pins[read.key][read.pool_slots] -= 1
        return True

    def needing(self, key: str, slots: IntArray) -> list[PendingRead]:
        """The pending reads of `key` that may need the pool rows at `slots`."""
        pins = self._pins.get(key)
        if pins is None or not np.count_nonzero(pins[slots]):
            return []
        return [read for read in self._reads.values() if read.key == key]

    def check(self) -> list[str]:
        """What contradicts itself: pins held although nothing is pending."""
        if self._reads:
            return []
        return [f"key {key}: pins held without a pending read" for key, pins in self._pins.items() if pins.any()]
