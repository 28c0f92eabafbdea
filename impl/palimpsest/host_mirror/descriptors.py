"""Copy descriptors: source address, destination address and size in bytes of each piece of a batched copy.

The arrays are reused. A batch that was handed to a stream is read until the copy ran, so that it comes back to
the free list only when the event recorded behind the copy has landed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

import numpy as np
import torch

from palimpsest.host_mirror.rows import IntArray, RowSet, RowSpans


class Queryable(Protocol):
    """An event that tells whether what it was recorded behind is done."""

    def query(self) -> bool: ...


class DescriptorBatch:
    """Room for `capacity` descriptors: int64 arrays `src`, `dst` and `sizes` on the host."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.src, self.dst, self.sizes = (torch.empty(capacity, dtype=torch.int64) for _ in range(3))
        self._arrays = self.src.numpy(), self.dst.numpy(), self.sizes.numpy()

    def put(self, start: int, src: IntArray, dst: IntArray, sizes: IntArray) -> int:
        """Store descriptors from number `start` on; gives the number after the last."""
        stop = start + src.size
        for array, values in zip(self._arrays, (src, dst, sizes), strict=True):
            array[start:stop] = values
        return stop


Pending = deque[tuple[Queryable, DescriptorBatch]]


def reclaim(pending: Pending, free: list[DescriptorBatch]) -> None:
    """Move the batches whose copies have landed to the free list; they land in the order of the stream."""
    while pending and pending[0][0].query():
        free.append(pending.popleft()[1])


def take(free: list[DescriptorBatch], count: int) -> DescriptorBatch:
    """The smallest free batch that has room for `count` descriptors, or a new one."""
    least = max(64, 1 << (count - 1).bit_length()) if count else 64
    if free and free[0].capacity == least:  # none is smaller
        return free.pop(0)
    fitting = [batch for batch in free if batch.capacity >= count]
    if not fitting:
        return DescriptorBatch(least)
    best = min(fitting, key=lambda batch: batch.capacity)
    free.remove(best)
    return best


# ------------------------------------------------------------------ addresses


def row_bytes(resident: torch.Tensor) -> int:
    """Bytes of one row of a resident cache [blocks, rows, ...]."""
    return math.prod(resident.shape[2:]) * resident.element_size()


def row_copies(
    rows: RowSet, source_index: int, resident: torch.Tensor, host: torch.Tensor, seams: IntArray | None = None
) -> tuple[IntArray, IntArray, IntArray]:
    """Addresses and sizes that copy `rows` of one layer to the host.

    `resident`: [blocks, rows, ...], each block's rows dense; `host`: [slots, ...], dense. `seams`: host addresses
    that no copy may cross, since memory on its two sides was registered apart.
    """
    page_bytes = resident.stride(0) * resident.element_size()
    spans = rows.in_bytes(source_index, int(resident.shape[1]), page_bytes, row_bytes(resident))
    src, dst = spans.source + resident.data_ptr(), spans.destination + host.data_ptr()
    return split_at_seams(RowSpans(src, dst, spans.rows), seams)


def page_copies(
    resident_blocks: IntArray, host_blocks: IntArray, resident: torch.Tensor, host: torch.Tensor
) -> tuple[IntArray, IntArray, IntArray]:
    """Addresses and sizes that copy whole pages of one layer to the host; a seam never lies inside a host block."""
    nbytes = int(resident.shape[1]) * row_bytes(resident)
    src = resident.data_ptr() + resident_blocks * (resident.stride(0) * resident.element_size())
    return src, host.data_ptr() + host_blocks * nbytes, np.full(src.size, nbytes, dtype=np.int64)


def split_at_seams(copies: RowSpans, seams: IntArray | None) -> RowSpans:
    """The same copies (addresses and bytes), cut where their destination crosses one of the sorted `seams`."""
    if seams is None or not seams.size:
        return copies
    first = np.searchsorted(seams, copies.destination, side="right")
    cuts = np.searchsorted(seams, copies.destination + copies.rows, side="left") - first
    if not cuts.any():
        return copies
    owner = np.repeat(np.arange(cuts.size), cuts + 1)
    number = np.arange(owner.size) - np.repeat(np.cumsum(cuts + 1) - cuts - 1, cuts + 1)
    padded = np.concatenate((seams, [0]))
    ends = copies.destination + copies.rows
    start = np.where(number == 0, copies.destination[owner], padded[first[owner] + number - 1])
    stop = np.where(number == cuts[owner], ends[owner], padded[np.minimum(first[owner] + number, seams.size)])
    return RowSpans(copies.source[owner] + start - copies.destination[owner], start, stop - start)
