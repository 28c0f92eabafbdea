"""Page-locking host memory for the device: in chunks, and undone exactly.

`cudaHostRegister` takes long and may fail for one huge range, so that a pool is registered in chunks. A copy must
not reach over from one chunk into the next: a chunk therefore ends between two host blocks, and at a page of the
machine, since no page can be registered twice.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from palimpsest.errors import BadMirrorInputError, MirrorMemoryError
from palimpsest.host_mirror.rows import IntArray
from palimpsest.memory import available_host_bytes, format_gib

MAX_CHUNK_BYTES = 32 << 30

Range = tuple[int, int]


def check_host_memory(nbytes: int) -> None:
    """Raise `MirrorMemoryError` when the host, or its control group, has less than `nbytes` left."""
    available = available_host_bytes()
    if nbytes > available:
        raise MirrorMemoryError(f"a host pool of {format_gib(nbytes)}, and {format_gib(available)} are available")


def registration_ranges(
    tensor_sizes: Sequence[int], num_blocks: int, host_block_stride: int, max_chunk_bytes: int = MAX_CHUNK_BYTES
) -> tuple[Range, ...]:
    """The chunks to register of a pool of `num_blocks * host_block_stride` bytes, as (start, stop).

    `tensor_sizes` are the bytes of the layers' tensors, which lie one after the other, each of `num_blocks`
    blocks. A chunk has at most `max_chunk_bytes`, unless no place to end it comes sooner.
    """
    total = num_blocks * host_block_stride
    ends = _chunk_ends(tensor_sizes, num_blocks, total)
    ranges: list[Range] = []
    start = 0
    while start < total:
        best = int(np.searchsorted(ends, start + max_chunk_bytes, side="right")) - 1
        if best < 0 or ends[best] <= start:
            best += 1  # the next place there is
        ranges.append((start, int(ends[best])))
        start = int(ends[best])
    return tuple(ranges)


def _chunk_ends(tensor_sizes: Sequence[int], num_blocks: int, total: int) -> IntArray:
    """Where a chunk may end: behind a block of some layer, at a page; or behind everything. Sorted."""
    places = [np.array([total], dtype=np.int64)]
    start = 0
    for number, size in enumerate(tensor_sizes):
        if size % num_blocks:
            raise BadMirrorInputError(f"layer {number} has {size} bytes, no multiple of {num_blocks} blocks")
        ends = start + np.arange(1, num_blocks + 1, dtype=np.int64) * (size // num_blocks)
        places.append(ends[ends % mmap.PAGESIZE == 0])
        start += size
    if start > total:
        raise BadMirrorInputError(f"layers of {start} bytes in a pool of {total} bytes")
    return np.unique(np.concatenate(places))
