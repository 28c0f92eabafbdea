"""The identities of rows, as trace events tell them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from palimpsest.runners.reference.identity import decode, read_tags


def event_tag(_key: str, rows: torch.Tensor) -> npt.NDArray[np.int64]:
    """A line of generation, position and key number for each row; damaged or unwritten rows give -1."""
    with np.errstate(invalid="ignore"):  # rows that are to be replaced by preserved ones hold anything
        return decode(read_tags(rows))
