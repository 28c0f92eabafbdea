"""Tagged rows, and a plain model of what must be delivered.

Rows carry their identity (request, generation, position, key), and the model keeps identities by slot and key in the
order of the engine's saves: it knows nothing of tasks, pages, reads or locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

NUM_BLOCKS, BLOCK_SIZE = 6, 2
WIDTH = 4

Identity = tuple[float, ...]


@dataclass(frozen=True)
class Part:
    """One request in a step: its blocks, where it starts, its tokens, and the tokens of its hit."""

    blocks: list[int]
    start: int
    count: int
    hit: int = 0
    new: bool = True

    def slots(self) -> list[int]:
        """The slots that the step writes."""
        return _slots(self.blocks, self.start, self.start + self.count)


def prefill(blocks: list[int], count: int) -> Part:
    """A new request that computes its first `count` tokens."""
    return Part(blocks, 0, count)


def hit(blocks: list[int], tokens: int, count: int) -> Part:
    """A new request that reuses `tokens` and computes `count` more."""
    return Part(blocks, tokens, count, hit=tokens)


def more(blocks: list[int], start: int, count: int = 1) -> Part:
    """A request that goes on."""
    return Part(blocks, start, count, new=False)


def _slots(blocks: list[int], start: int, stop: int) -> list[int]:
    return [blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(start, stop)]


def tag_of(_key: str, rows: torch.Tensor) -> np.ndarray | None:
    """The identities in rows; None for rows that carry none."""
    if rows.ndim != 2 or rows.shape[1] != WIDTH:
        return None
    with np.errstate(invalid="ignore"):  # memory that nobody has written yet
        return rows.numpy().astype(np.int64)


@dataclass
class View:
    """The runner's batch, as far as the cache asks."""

    block_size: int = BLOCK_SIZE
    order: list[str] = field(default_factory=list)
    slots: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def batch_req_ids(self) -> list[str]:
        return list(self.order)

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: Mapping[str, int]) -> torch.Tensor:  # noqa: ARG002
        return self.slots


class Model:
    """What each (slot, key) holds, by identity, as the engine's calls say."""

    def __init__(self) -> None:
        self._names: dict[str, float] = {}
        self._rows: dict[int, dict[str, Identity]] = {}
        self._tenants: dict[int, tuple[str, int]] = {}
        self._generation: dict[str, int] = {}

    def end(self, request: str) -> None:
        """The request's generation is over."""
        self._generation[request] = self._generation.get(request, 0) + 1

    def identity(self, request: str, position: int, key: str) -> Identity:
        """What a row written now says."""
        return self._number(request), float(self._generation.get(request, 0)), float(position), self._number(key)

    def allocate(self, blocks: Iterable[int]) -> None:
        """Blocks are given to somebody who has not written them."""
        for block in blocks:
            self._tenants.pop(block, None)
            for slot in _slots([block], 0, BLOCK_SIZE):
                self._rows.pop(slot, None)

    def save(self, request: str, part: Part, keys: Iterable[str]) -> None:
        """A request writes the rows of a step."""
        tenant = request, self._generation.get(request, 0)
        for position, slot in enumerate(part.slots(), part.start):
            if self._tenants.get(slot // BLOCK_SIZE) != tenant:
                self.allocate([slot // BLOCK_SIZE])
                self._tenants[slot // BLOCK_SIZE] = tenant
            self._rows.setdefault(slot, {}).update({key: self.identity(request, position, key) for key in keys})

    def reset(self) -> None:
        """Nothing saved so far can be read."""
        self._rows.clear()
        self._tenants.clear()

    def prompt(self, request: str, part: Part, key: str) -> list[Identity | None]:
        """The rows that the step must deliver, None for an absent one."""
        prefix = [self._rows.get(slot, {}).get(key) for slot in _slots(part.blocks, 0, part.hit)]
        return prefix + [self.identity(request, at, key) for at in range(part.start, part.start + part.count)]

    def _number(self, name: str) -> float:
        return self._names.setdefault(name, len(self._names) + 1.0)
