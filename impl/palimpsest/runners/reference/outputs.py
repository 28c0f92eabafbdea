"""The model's live output buffers: static, overwritten in place by each forward, identities included."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.runners.reference.identity import IDENTITY_COLUMNS, tags
from palimpsest.runners.reference.model import Decoder, ModelSize

IntArray = npt.NDArray[np.int64]

TEXT_KEY = "codes.text"
AUDIO_KEY = "codes.audio"

#: what rows in the padding of a live buffer hold: never a valid value of an identity column
PADDING = -1.0


@dataclass(frozen=True)
class OutputKey:
    """One output of the model: its number in the identity columns, and the shape of a row."""

    name: str
    number: int
    row_shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """Columns of a (flattened) row in front of its identity."""
        return math.prod(self.row_shape) - IDENTITY_COLUMNS


def output_keys(size: ModelSize) -> list[OutputKey]:
    """The outputs: hidden states, text features written at each step, and audio features, whose rows have
    two dimensions, written when the request ends."""
    audio = size.audio + IDENTITY_COLUMNS
    if audio % 2:
        raise ValueError(f"a row of audio features has {audio} columns, and must have an even number")
    return [
        OutputKey(HIDDEN_KEY, 1, (size.hidden + IDENTITY_COLUMNS,)),
        OutputKey(TEXT_KEY, 2, (size.text + IDENTITY_COLUMNS,)),
        OutputKey(AUDIO_KEY, 3, (2, audio // 2)),
    ]


POLICY = ModelCachePolicy(deferred_keys=frozenset({AUDIO_KEY}), per_token_keys=frozenset({TEXT_KEY, AUDIO_KEY}))


def output_values(model: Decoder, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """The values of each output for hidden states, without identities."""
    text, audio = model.heads(hidden)
    return {HIDDEN_KEY: hidden, TEXT_KEY: text, AUDIO_KEY: audio}


class LiveBuffers:
    """One buffer per output. What `save_outputs` is given are views of them."""

    def __init__(self, size: ModelSize, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.keys = output_keys(size)
        self._rows = {
            key.name: torch.full((capacity, *key.row_shape), PADDING, dtype=dtype, device=device) for key in self.keys
        }

    def overwrite(
        self, values: dict[str, torch.Tensor], generations: IntArray, positions: IntArray, padded: int
    ) -> dict[str, torch.Tensor]:
        """Write a step's rows over the last step's; gives views of `padded` rows."""
        count = positions.size
        for key in self.keys:
            flat = self._rows[key.name].view(self._rows[key.name].shape[0], -1)
            identity = torch.from_numpy(tags(generations, positions, key.number))
            flat[:count, : key.values] = values[key.name].to(flat.dtype)
            flat[:count, key.values :] = identity.to(flat.device, flat.dtype)
            flat[count:padded] = PADDING
        return {name: rows[:padded] for name, rows in self._rows.items()}
