"""The durable host rows: one tensor per key with a row for every slot."""

from __future__ import annotations

import numpy as np
import torch

from palimpsest.prefix_cache.interface import KeyLayout, PrefixCacheConfig


class PrefixBlockPool:
    """Rows by (slot, key), in host memory that lives as long as the pool.

    The committer writes rows, readers copy them out; neither takes a lock. A reader that may overlap a
    write checks the slots' versions afterwards.
    """

    def __init__(self, config: PrefixCacheConfig) -> None:
        self._num_slots = config.num_slots
        #: grows under the manager's state lock
        self._storage: dict[str, torch.Tensor] = {}
        #: the same memory, an array of rows per key
        self._arrays: dict[str, np.ndarray] = {}
        #: dtype and trailing shape of each key's rows
        self.layouts: dict[str, KeyLayout] = {}

    def has_key(self, key: str) -> bool:
        """Whether `key` has storage."""
        return key in self._storage

    def layout(self, key: str) -> KeyLayout:
        """Dtype and trailing shape of the rows of `key`."""
        return self.layouts[key]

    def allocate(self, layout: KeyLayout) -> torch.Tensor:
        """Zeroed storage for a key of `layout`, not yet installed."""
        return torch.zeros((self._num_slots, *layout.row_shape), dtype=layout.dtype)

    def install_key(self, key: str, storage: torch.Tensor) -> None:
        """Publish the storage of a new key; the caller holds the manager's state lock."""
        self._arrays[key] = _as_rows(storage)
        self._storage[key] = storage
        self.layouts[key] = KeyLayout.of(storage)

    def ensure_key(self, key: str, dtype: torch.dtype, width: int | tuple[int, ...]) -> None:
        """Give `key` storage of rows of `width`, unless it has some."""
        shape = (width,) if isinstance(width, int) else tuple(width)
        if key not in self._storage:
            self.install_key(key, self.allocate(KeyLayout(dtype, shape)))

    def rows(self, key: str, slots: torch.Tensor) -> torch.Tensor:
        """A copy of the rows of `key` at `slots`."""
        storage = self._storage[key]
        out = storage.new_empty((slots.numel(), *storage.shape[1:]))
        self.read_into(key, slots.numpy(), out)
        return out

    def read_into(self, key: str, slots: np.ndarray, out: torch.Tensor) -> None:
        """Copy the rows of `key` at `slots` into `out`, run by run where slots are consecutive."""
        storage = self._storage[key]
        runs = _runs(slots, storage)
        if runs is None:
            torch.index_select(storage, 0, torch.from_numpy(slots), out=out)
            return
        for row, slot, length in runs:
            out[row : row + length].copy_(storage[slot : slot + length])

    def fill(self, key: str, slots: np.ndarray | None, byte: int) -> None:
        """Fill each byte of the rows at `slots` (None: all) with `byte`."""
        rows = self._arrays[key]
        whole = np.frombuffer(bytes([byte]) * rows.itemsize, dtype=rows.dtype)[0]
        rows[slice(None) if slots is None else slots] = whole

    def write(self, key: str, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Put `rows` at `slots`, which are distinct, run by run where slots are consecutive."""
        storage = self._storage[key]
        runs = _runs(slots.numpy(), storage)
        if runs is None and 0 < rows.nbytes <= _BLOCK_COPY_BYTES:
            self._arrays[key][slots.numpy()] = _as_rows(rows)
            return
        if runs is None:
            storage.index_copy_(0, slots, rows)
            return
        for row, slot, length in runs:
            storage[slot : slot + length].copy_(rows[row : row + length])


_RUN_BYTES = 32 << 10  # below this many bytes a run, one indexed copy beats a copy per run

_BLOCK_COPY_BYTES = 4 << 20  # up to this many bytes, one memcpy per row on one thread beats torch's indexed copy


def _as_rows(rows: torch.Tensor) -> np.ndarray:
    """Host rows as an array of opaque rows, which NumPy copies whole; their memory is shared where it is
    contiguous."""
    row_bytes = max(1, rows.nbytes // max(1, rows.shape[0]))
    flat: np.ndarray = rows.contiguous().view(-1).view(torch.uint8).numpy()
    return flat.view(np.dtype((np.void, row_bytes)))


def _runs(slots: np.ndarray, storage: torch.Tensor) -> list[tuple[int, int, int]] | None:
    """`slots` as (first row, first slot, length) of consecutive runs, or None when runs are too short."""
    count = slots.size
    if count == 0:
        return []
    most = max(1, count * storage.stride(0) * storage.element_size() // _RUN_BYTES)
    jumps = slots[1:] - slots[:-1] != 1
    if np.count_nonzero(jumps) >= most:
        return None
    starts = [0, *(np.flatnonzero(jumps) + 1).tolist()]
    ends = [*starts[1:], count]
    return [(start, int(slots[start]), end - start) for start, end in zip(starts, ends, strict=True)]
