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


def describe(tag: npt.NDArray[np.float64]) -> str:
    """What one line of identity columns says, for an error report."""
    if not np.isfinite(tag).all():
        return f"no identity {tag.tolist()}"
    weights = BASE ** np.arange(_GENERATION_DIGITS - 1, -1, -1)
    generation = float(tag[:_GENERATION_DIGITS] @ weights)
    position = float(tag[_GENERATION_DIGITS:-1] @ weights)
    return f"generation {generation:g}, position {position:g}, key {tag[-1]:g}"
