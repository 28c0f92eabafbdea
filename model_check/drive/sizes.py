"""A model's constants as the sizes of a cache, and rows that say what they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig

from ..manifest import Model
from ..values import parse_value
from .spec_state import Cell, Identity

#: generation, position, number of the key
WIDTH = 3
_BLOCK_SIZES = {"<- Single": 1, "<- Pairs": 2}


@dataclass(frozen=True)
class Sizes:
    """What a model says of the cache: slots and blocks, keys and when they are written, pages, bytes."""

    slots: tuple[int, ...]
    block_size: int
    requests: tuple[str, ...]
    immediate: frozenset[str]
    deferred: frozenset[str]
    hidden: frozenset[str]
    pages: int
    budget_rows: int
    dtype: torch.dtype = torch.int64
    keys: tuple[str, ...] = field(init=False)
    cells: tuple[Cell, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(sorted(self.immediate | self.deferred)))
        object.__setattr__(self, "cells", tuple((slot, key) for slot in self.slots for key in self.keys))

    @classmethod
    def of(cls, model: Model) -> Sizes:
        """The sizes that a model's constants say."""
        said: dict[str, Any] = {
            name: parse_value(text) if isinstance(text, str) else text for name, text in model.constants.items()
        }
        return cls(
            tuple(sorted(said["Slots"])), _BLOCK_SIZES[str(model.constants["Blocks"])],
            tuple(sorted(said["Requests"])), said["Immediate"], said["Deferred"], said["Hidden"],
            len(said["Pages"]), said["Budget"],
        )  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, which is what the specification counts."""
        return WIDTH * self.dtype.itemsize

    @property
    def config(self) -> PrefixCacheConfig:
        """The cache's. A warning would cut a wait in two, of which only one is to run out."""
        return PrefixCacheConfig(
            self.slots[-1] // self.block_size + 1, self.block_size, staging_depth=self.pages,
            staging_capacity_tokens=16, gpu_staging_bytes=max(1, self.budget_rows * self.row_bytes), slow_wait_s=0,
        )  # fmt: skip

    @property
    def policy(self) -> ModelCachePolicy:
        """Which keys are cached, and how: hidden states are those whose absent rows make a read raise."""
        return ModelCachePolicy(
            needs_full_hidden_states=bool(self.hidden),
            deferred_keys=frozenset(map(self.code_key, self.deferred)),
            per_token_keys=frozenset(map(self.code_key, self.immediate - self.hidden)),
        )

    def code_key(self, key: str) -> str:
        """The cache's name of a key."""
        return HIDDEN_KEY if key in self.hidden else key

    def spec_key(self, key: str) -> str:
        """The specification's name of a key."""
        return next(iter(self.hidden)) if key == HIDDEN_KEY else key

    def row(self, identity: Identity) -> list[int]:
        """A row that says what it is; memory that nobody has written is zero."""
        generation, position, key = identity
        return [generation, position, self.keys.index(key) + 1 if key in self.keys else 0]

    def identity(self, row: torch.Tensor) -> Identity:
        """What a row says that it is; an odd key where it says nothing that was ever written."""
        return self.identities(row[None])[0]

    def identities(self, rows: torch.Tensor) -> list[Identity]:
        """What each of `rows` says that it is."""
        names = dict(enumerate(self.keys, 1))
        return [(gen, at, names.get(key, f"key {key}")) for gen, at, key in rows.tolist()]

    def tag(self, _key: str, rows: torch.Tensor) -> np.ndarray | None:
        """The identities in rows, for a trace."""
        return rows.numpy().copy() if rows.ndim == 2 and rows.shape[1] == WIDTH else None
