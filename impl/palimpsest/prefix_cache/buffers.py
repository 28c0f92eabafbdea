"""Output buffers that are used again once nobody holds the tensors in them.

Fresh memory costs a page fault for every 4 KiB when it is first written: several times the copy itself. So
large buffers come from blocks that were touched before. A block goes back when the last tensor on it dies,
wherever a caller kept it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_SMALL_BYTES = 1 << 20
_IDLE_BYTES = 1 << 30
_GRAIN_BITS = 3  # block sizes are multiples of an eighth of a power of two


class OutputBuffers:
    """Gives host tensors whose memory is reused; at most 1 GiB is kept idle."""

    def __init__(self) -> None:
        #: by size; lists are only appended to and popped from, which needs no lock on any thread
        self._idle: dict[int, list[np.ndarray]] = {}
        self._leases: dict[int, weakref.ref[Any]] = {}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized tensor, which belongs to the caller alone for as long as it, or a view of it, lives."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _SMALL_BYTES:
            return torch.empty(shape, dtype=dtype)
        return torch.from_numpy(self._lease(nbytes)).view(dtype).view(shape)

    def clone(self, rows: torch.Tensor) -> torch.Tensor:
        """A copy of `rows`."""
        if rows.nbytes < _SMALL_BYTES:
            return rows.clone(memory_format=torch.contiguous_format)
        return self.empty(tuple(rows.shape), rows.dtype).copy_(rows)

    def idle_bytes(self) -> int:
        """Bytes of the blocks that no tensor stands on."""
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))

    def _lease(self, nbytes: int) -> np.ndarray:
        size = _size_class(nbytes)
        try:
            block = self._idle[size].pop()
        except (KeyError, IndexError):
            block = np.empty(size, dtype=np.uint8)
        lease = block[:nbytes]
        # The tensor's storage keeps `lease` alive; when both are gone the block can be given out again.
        self._leases[id(lease)] = weakref.ref(lease, self._giving_back(id(lease), block))
        return lease

    def _giving_back(self, number: int, block: np.ndarray) -> Callable[[Any], None]:
        def give_back(_: Any) -> None:
            self._leases.pop(number, None)
            if self.idle_bytes() + block.size <= _IDLE_BYTES:
                self._idle.setdefault(block.size, []).append(block)

        return give_back


def _size_class(nbytes: int) -> int:
    grain = 1 << max(0, nbytes.bit_length() - _GRAIN_BITS - 1)
    return -(-nbytes // grain) * grain
