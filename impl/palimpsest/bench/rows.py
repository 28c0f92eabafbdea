"""Rows that say whose they are: every benchmark checks each delivered row, so that no wrong one can be fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from palimpsest.prefix_cache import KeyLayout

#: columns of a row that hold its identity; the others are a pattern of the key that the identity is mixed into
IDENTITY_WIDTH = 4

#: whole numbers of a dtype's size: rows are made and compared as bits
_BITS = {2: torch.int16, 4: torch.int32}
_LOW = 0x7FFF


@dataclass(frozen=True)
class Identities:
    """Request number and position of rows, an integer array each."""

    numbers: np.ndarray
    positions: np.ndarray

    def columns(self, key: int, dtype: torch.dtype) -> torch.Tensor:
        """The identity columns of these rows of the key numbered `key`: request (two halves), position, key."""
        high, low = self.numbers >> 15, self.numbers & _LOW
        stacked = np.stack([low, high, self.positions & _LOW, np.full_like(low, key)], axis=1)
        return torch.from_numpy(stacked).to(bits(dtype))


def bits(dtype: torch.dtype) -> torch.dtype:
    """The integer dtype of the same size. Raises `ValueError` for a size of neither 2 nor 4 bytes."""
    if dtype.itemsize not in _BITS:
        raise ValueError(f"{dtype} has {dtype.itemsize} bytes, and rows are made of {sorted(_BITS)}")
    return _BITS[dtype.itemsize]


class RowMaker:
    """Makes and checks the rows of the keys of `layouts`, each a vector of at least `IDENTITY_WIDTH` values."""

    def __init__(self, layouts: Mapping[str, KeyLayout], device: str = "cpu") -> None:
        self.layouts, self.device = dict(layouts), device
        self._number = {key: number for number, key in enumerate(self.layouts)}
        self._pattern = {
            key: torch.randint(0, _LOW, layout.row_shape, generator=torch.Generator().manual_seed(number))
            .to(bits(layout.dtype))
            .to(device)
            for number, (key, layout) in enumerate(self.layouts.items())
        }

    def columns(self, key: str, who: Identities) -> torch.Tensor:
        """The identity columns of rows, where the rows are."""
        return who.columns(self._number[key], self.layouts[key].dtype).to(self.device)

    def write(self, key: str, columns: torch.Tensor, rows: torch.Tensor) -> None:
        """Fill `rows` with the rows that have these identity columns, in place."""
        as_bits = rows.view(bits(self.layouts[key].dtype))
        torch.bitwise_xor(self._mixed(columns), self._pattern[key], out=as_bits)
        as_bits[:, :IDENTITY_WIDTH] = columns

    def wrong(self, key: str, columns: torch.Tensor, rows: torch.Tensor) -> int:
        """How many of `rows` differ in any bit from the rows that have these identity columns.

        Rows of another number or shape than was due are all wrong.
        """
        layout = self.layouts[key]
        if tuple(rows.shape) != (len(columns), *layout.row_shape) or rows.dtype is not layout.dtype:
            return max(len(columns), len(rows))
        want = torch.empty(rows.shape, dtype=layout.dtype, device=rows.device)
        self.write(key, columns, want)
        as_bits = bits(layout.dtype)
        if torch.equal(rows.view(as_bits), want.view(as_bits)):
            return 0
        return int((rows.view(as_bits) != want.view(as_bits)).any(dim=1).sum())

    @staticmethod
    def _mixed(columns: torch.Tensor) -> torch.Tensor:
        return (columns[:, :1] * 31) ^ (columns[:, 2:3] * 7)


class LiveBuffers:
    """A model's output buffers, which every forward overwrites in place."""

    def __init__(self, maker: RowMaker, rows: int) -> None:
        self.maker = maker
        self.buffers = {
            key: torch.zeros(rows, *layout.row_shape, dtype=layout.dtype, device=maker.device)
            for key, layout in maker.layouts.items()
        }

    def forward(self, who: Identities) -> None:
        """Overwrite the first rows with those of `who`."""
        for key in self.buffers:
            self.write(key, self.maker.columns(key, who))

    def write(self, key: str, columns: torch.Tensor) -> None:
        """Overwrite the first rows of a key with those that have these identity columns."""
        self.maker.write(key, columns, self.buffers[key][: len(columns)])
