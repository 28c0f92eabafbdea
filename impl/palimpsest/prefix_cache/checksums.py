"""What the row checks compute: a checksum per row, and a pattern that no live row has by chance.

The checksum is made of two sums, of the first and the second half of a row's words, each times an odd constant. It is
exact integer arithmetic, so that host and accelerator agree. It finds other rows, torn rows and flipped bits, and not
words that change places within one half.
"""

from __future__ import annotations

import numpy as np
import torch

POISON = 0xDB
_FIRST, _SECOND, _VERSION = 0x9E3779B97F4A7C15 - (1 << 64), 0xC2B2AE3D27D4EB4F - (1 << 64), 0x165667B19E3779F9
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))

#: rows of fewer bytes are not looked at: a live row could have the pattern by chance
_LEAST_POISON_BYTES = 4


def digests(rows: torch.Tensor) -> torch.Tensor:
    """A checksum of each row's bytes: int64, where the rows are."""
    words = _as_words(rows)
    half = (words.shape[1] + 1) // 2
    if words.device.type == "cpu":  # NumPy has less to set up, and asks no other thread to help
        at = words.numpy()
        sums = at[:, :half].sum(1, dtype=np.int64) * _FIRST + at[:, half:].sum(1, dtype=np.int64) * _SECOND
        return torch.from_numpy(sums)
    first = words[:, :half].sum(1, dtype=torch.int64)
    return first * _FIRST + words[:, half:].sum(1, dtype=torch.int64) * _SECOND


def mixed(sums: torch.Tensor, versions: torch.Tensor) -> torch.Tensor:
    """Checksums of content and identity: those of rows, and of which claim of their slot they are."""
    return sums + versions * _VERSION


def poison(rows: torch.Tensor) -> None:
    """Fill contiguous rows with the pattern."""
    rows.view(-1).view(torch.uint8).fill_(POISON)


def is_poisoned(rows: torch.Tensor) -> np.ndarray:
    """Which rows, on the host, have the pattern in each byte."""
    words = _as_words(rows).numpy()
    if words.shape[1] * words.itemsize < _LEAST_POISON_BYTES:
        return np.zeros(words.shape[0], dtype=bool)
    pattern = np.frombuffer(bytes([POISON]) * words.itemsize, dtype=words.dtype)[0]
    found: np.ndarray = words[:, 0] == pattern
    at = np.flatnonzero(found)
    if at.size:
        found[at] = (words[at] == pattern).all(axis=1)
    return found


def _as_words(rows: torch.Tensor) -> torch.Tensor:
    """The rows as lines of the widest integers that they are made of."""
    if not rows.numel():
        return torch.empty((rows.shape[0], 0), dtype=torch.uint8, device=rows.device)
    flat = rows.contiguous().view(rows.shape[0], -1)
    row_bytes = flat.shape[1] * flat.element_size()
    offset = flat.storage_offset() * flat.element_size()
    word = next(dtype for size, dtype in _WORDS if row_bytes % size == 0 and offset % size == 0)
    return flat.view(torch.uint8).view(word)
