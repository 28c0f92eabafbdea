"""Identity columns: who wrote a row, carried in the row itself.

The last columns of every row say which generation of which request wrote it, for which position and
which key. Each number is split into digits of base 256, which every floating dtype down to bfloat16
holds exactly. Nothing here is derived from the slot: a slot's next tenant writes other columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]

BASE = 256
_GENERATION_DIGITS = 3
_POSITION_DIGITS = 3
#: columns at the end of each row: generation, position, key
IDENTITY_COLUMNS = _GENERATION_DIGITS + _POSITION_DIGITS + 1
#: generations (and positions) that the columns can tell apart
IDENTITY_LIMIT = BASE**_GENERATION_DIGITS


def tags(generations: IntArray, positions: IntArray, key: int) -> IntArray:
    """The identity columns of rows, one line per row; `key` is the key's number."""
    columns = [*_digits(generations, _GENERATION_DIGITS), *_digits(positions, _POSITION_DIGITS)]
    return np.stack([*columns, np.full_like(positions, key)], axis=1)


def _digits(numbers: IntArray, count: int) -> list[IntArray]:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < BASE**count:
        raise OverflowError(f"identity numbers must be below {BASE**count}, got {int(numbers.max())}")
    return [numbers // BASE**place % BASE for place in reversed(range(count))]


def read_tags(rows: torch.Tensor) -> npt.NDArray[np.float64]:
    """The identity columns as they stand in delivered rows; not rounded, so that damage stays visible."""
    flat = rows.reshape(rows.shape[0], -1)[:, -IDENTITY_COLUMNS:]
    return np.asarray(flat.to(torch.float64).cpu().numpy())


def decode(lines: npt.NDArray[np.float64]) -> IntArray:
    """Generation, position and key number that lines of identity columns say; damaged columns give -1."""
    weights = BASE ** np.arange(_GENERATION_DIGITS - 1, -1, -1)
    digits = np.where(np.isfinite(lines), lines, -1).astype(np.int64)
    generation, position = digits[:, :_GENERATION_DIGITS], digits[:, _GENERATION_DIGITS:-1]
    numbers = np.stack([generation @ weights, position @ weights, digits[:, -1]], axis=1)
    numbers[(digits < 0).any(axis=1)] = -1
    return np.asarray(numbers)


def describe(line: npt.NDArray[np.float64]) -> str:
    """What one line of identity columns says, for an error report."""
    generation, position, key = decode(line[None])[0].tolist()
    return "nobody" if key < 0 else f"generation {generation}, position {position}, key {key}"
