"""A small decoder with sparse attention, run either over mirrored pages or plainly over a whole sequence.

Each layer keeps one latent row per token, which is key and value at once. In every index group the leader scores all
earlier tokens by an index key of their own and selects the best `top_k`; its followers attend to the same ones. The
draft layer stands behind the model and writes its rows once tokens are accepted. Everything is computed in float64,
so that the two runs can be held against one another closely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

IntArray = npt.NDArray[np.int64]

#: columns at the end of each row: request, generation, position, layer, step that wrote it
IDENTITY = 5


@dataclass(frozen=True)
class SparseSize:
    """Dimensions of the model. `leaders` are the layers that select; the last layer is the draft model's."""

    vocabulary: int = 97
    hidden: int = 16
    index: int = 8
    layers: int = 5
    leaders: tuple[int, ...] = (0, 2, 4)
    sources: tuple[int, ...] = (0, 0, 1, 1, 1)
    top_k: int = 6

    @property
    def draft(self) -> int:
        """The draft model's layer."""
        return self.layers - 1

    @property
    def row_width(self) -> int:
        """A latent row and its identity."""
        return self.hidden + IDENTITY


#: writes a layer's latent rows and gives the rows that each token attends to, with a mask of those that there are
Attend = Callable[[int, torch.Tensor, torch.Tensor | None, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]


class SparseDecoder:
    """The model; random weights, the same for the same seed."""

    def __init__(self, size: SparseSize, seed: int, device: torch.device) -> None:
        self.size, self.device = size, device
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> torch.Tensor:
            made = torch.randn(rows, columns, generator=generator, dtype=torch.float64) / math.sqrt(rows)
            return made.to(device)

        width = size.hidden
        self.embedding = weight(size.vocabulary, width) * math.sqrt(size.vocabulary)
        self.latent = [weight(width, width) for _ in range(size.layers)]
        self.query = [weight(width, width) for _ in range(size.layers)]
        self.out = [weight(width, width) for _ in range(size.layers)]
        self.index_key = [weight(width, size.index) for _ in range(size.layers)]
        self.index_query = [weight(width, size.index) for _ in range(size.layers)]

    def target(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden states of the target model's layers."""
        x = self.embedding[tokens] + _position_code(positions, self.size.hidden)
        for layer in range(self.size.draft):
            x = self._layer(layer, x, attend)
        return x

    def draft(self, hidden: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden states of the draft model, over accepted tokens."""
        return self._layer(self.size.draft, hidden, attend)

    def next_tokens(self, hidden: torch.Tensor) -> list[int]:
        """The most likely token after each row."""
        return [int(token) for token in (hidden @ self.embedding.T).argmax(dim=1).tolist()]

    def _layer(self, layer: int, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        normed = functional.rms_norm(x, (x.shape[-1],), eps=1e-9)
        key = query = None
        if layer in self.size.leaders:
            key, query = normed @ self.index_key[layer], normed @ self.index_query[layer]
        rows, there = attend(layer, normed @ self.latent[layer], key, query)
        scores = torch.einsum("qd,qkd->qk", normed @ self.query[layer], rows) / math.sqrt(self.size.hidden)
        mixed = torch.einsum("qk,qkd->qd", scores.masked_fill(~there, -torch.inf).softmax(dim=1), rows)
        return x + torch.tanh(mixed @ self.out[layer])

    # ------------------------------------------------------------ without pages

    def plain(self, tokens: list[int]) -> PlainRun:
        """A whole sequence without any cache: hidden states, and the latent rows of every layer."""
        rows: list[torch.Tensor] = []
        keys: dict[int, torch.Tensor] = {}
        selected = torch.empty(0, dtype=torch.int64, device=self.device)

        def attend(
            layer: int, latent: torch.Tensor, key: torch.Tensor | None, query: torch.Tensor | None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal selected
            rows.append(latent)
            if key is not None and query is not None:
                keys[layer] = key
                count = torch.arange(1, latent.shape[0] + 1, device=self.device)
                selected = choose(query @ key.T, count, self.size.top_k)
            return latent[selected.clamp(min=0)], selected >= 0

        positions = torch.arange(len(tokens), device=self.device)
        hidden = self.target(torch.tensor(tokens, device=self.device), positions, attend)
        self.draft(hidden, attend)
        return PlainRun(hidden, rows, keys)


@dataclass(frozen=True)
class PlainRun:
    """Hidden states [tokens, hidden], each layer's latent rows [tokens, hidden], each leader's index keys."""

    hidden: torch.Tensor
    rows: list[torch.Tensor]
    keys: dict[int, torch.Tensor]


def choose(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """The positions of the `top_k` best scores of each row among its first `visible`, sorted; -1 where there are
    fewer. [rows, top_k]"""
    hidden = torch.arange(scores.shape[1], device=scores.device)[None, :] >= visible[:, None]
    masked = functional.pad(scores.masked_fill(hidden, -torch.inf), (0, top_k), value=-torch.inf)
    best = masked.topk(top_k, dim=1)
    return torch.where(best.values > -torch.inf, best.indices, -1).sort(dim=1, descending=True).values


def _position_code(positions: torch.Tensor, width: int) -> torch.Tensor:
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10000.0) / width))
    angles = positions.to(torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
