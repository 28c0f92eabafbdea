"""A small decoder-only transformer, run either over paged KV blocks or plainly over a whole sequence.

Both runs share every layer and differ only in how attention finds its keys and values, so that the plain
run is what the paged run must agree with. Weights are random, the same for the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class ModelSize:
    """Dimensions of the model; `text` and `audio` are the widths of its multimodal heads."""

    vocabulary: int = 512
    hidden: int = 64
    heads: int = 4
    layers: int = 2
    text: int = 25
    audio: int = 17

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer."""

    qkv: torch.Tensor
    out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Span:
    """One request's share of a forward: its tokens are rows `start` to `stop`, and it attends to `slots`,
    the last of which are its own."""

    start: int
    stop: int
    slots: torch.Tensor


class PagedKV:
    """Keys and values of every slot of the KV blocks, per layer; overwritten in place."""

    def __init__(self, size: ModelSize, num_slots: int, device: torch.device) -> None:
        shape = (size.layers, num_slots, size.heads, size.head)
        self.keys, self.values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)


class Decoder:
    """The model. Computes in float32."""

    def __init__(self, size: ModelSize, seed: int, device: torch.device) -> None:
        self.size, self.device = size, device
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> torch.Tensor:
            return (torch.randn(rows, columns, generator=generator) / math.sqrt(rows)).to(device)

        width = size.hidden
        self.embedding = torch.randn(size.vocabulary, width, generator=generator).to(device)
        self.layers = [
            Layer(*(weight(rows * width, columns * width) for rows, columns in ((1, 3), (1, 1), (1, 4), (4, 1))))
            for _ in range(size.layers)
        ]
        self.text_head, self.audio_head = weight(width, size.text), weight(width, size.audio)

    def paged(self, tokens: torch.Tensor, positions: torch.Tensor, spans: list[Span], kv: PagedKV) -> torch.Tensor:
        """Hidden states of a step's tokens; writes their keys and values to the slots that `spans` end with.

        All of a layer's keys and values are written before any request attends, so that a request can
        hit a block that another one computes in the same step.
        """
        own = torch.cat([span.slots[span.slots.numel() - (span.stop - span.start) :] for span in spans])

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = kv.keys[layer], kv.values[layer]
            keys[own], values[own] = key, value
            parts = [_attention(query[span.start : span.stop], keys[span.slots], values[span.slots]) for span in spans]
            return torch.cat(parts)

        return self._run(tokens, positions, attend)

    def plain(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states of one whole sequence, without any cache."""
        positions = torch.arange(tokens.numel(), device=self.device)
        return self._run(tokens, positions, lambda _, query, key, value: _attention(query, key, value))

    def heads(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The multimodal outputs of hidden states: text and audio features."""
        return hidden @ self.text_head, torch.tanh(hidden @ self.audio_head)

    def next_tokens(self, hidden: torch.Tensor) -> list[int]:
        """The most likely next token after each row."""
        return [int(token) for token in (hidden @ self.embedding.T).argmax(dim=1).tolist()]

    def _run(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        x = self.embedding[tokens] + _position_code(positions, self.size.hidden)
        for number, layer in enumerate(self.layers):
            query, key, value = self._split_heads(_norm(x) @ layer.qkv)
            x = x + attend(number, query, key, value).reshape(x.shape) @ layer.out
            x = x + functional.gelu(_norm(x) @ layer.up) @ layer.down
        return _norm(x)

    def _split_heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = qkv.view(-1, 3, self.size.heads, self.size.head).unbind(1)
        return query, key, value


def _attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last tokens of a sequence over all of it; [tokens, heads, width]."""
    new, total = query.shape[0], keys.shape[0]
    mask = None
    if 1 < new < total:
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
    mixed = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=new == total,
    )
    return mixed[0].transpose(0, 1)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), eps=1e-6)


def _position_code(positions: torch.Tensor, width: int) -> torch.Tensor:
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10000.0) / width))
    angles = positions.to(torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
