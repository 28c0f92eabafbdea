"""What a runner hands to the prefix cache: configuration, policy, key layouts, schedules."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from palimpsest.errors import ConfigRefusedError, PrefixCacheError, StagingTimeoutError

__all__ = [
    "HIDDEN_KEY",
    "KeyLayout",
    "ModelCachePolicy",
    "OmniPrefixCacheStagingTimeoutError",
    "OmniPrefixCacheUnmatchError",
    "PrefixCacheConfig",
    "PrefixCacheError",
    "RowChecks",
    "StagingTimeoutError",
    "WriteSchedule",
]

OmniPrefixCacheUnmatchError = PrefixCacheError
OmniPrefixCacheStagingTimeoutError = StagingTimeoutError

HIDDEN_KEY = "__hidden_states__"

_MIB = 1 << 20

_COUNTS = (
    "num_blocks",
    "block_size",
    "staging_depth",
    "staging_capacity_tokens",
    "gpu_staging_bytes",
    "flight_recorder_events",
)


class WriteSchedule(enum.Enum):
    """When a write must have landed: before the next save, or when its request ends."""

    JOIN_NEXT_STEP = "join_next_step"
    JOIN_ON_FINISH = "join_on_finish"


class RowChecks(enum.Enum):
    """What is checked of the rows that are delivered.

    `DIGEST_LOG` and `DIGEST` compare a checksum of content and identity with the one taken when the row was saved; the
    first logs and counts what differs, the second raises. `POISON` fills freed pages and slots with a pattern, and
    raises where a delivered row has it.
    """

    OFF = "off"
    DIGEST_LOG = "digest-log"
    DIGEST = "digest"
    POISON = "poison"


class KeyLayout(NamedTuple):
    """Dtype and trailing shape of one row of a key; fixed when its first per-token value is saved."""

    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    @classmethod
    def of(cls, value: torch.Tensor) -> KeyLayout:
        """The layout of a per-token value (its first dimension counts tokens)."""
        return cls(value.dtype, tuple(value.shape[1:]))

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.row_shape)}"


@dataclass(frozen=True)
class PrefixCacheConfig:
    """Sizes and bounds of one prefix cache.

    `num_blocks` and `block_size` are those of the KV cache: there are `num_blocks * block_size` slots.
    `staging_capacity_tokens` bounds the tokens of a step, `staging_depth` the steps that may be saved and
    not yet consumed. `staging_claim_timeout_s` bounds every wait, in seconds. `gpu_staging_bytes` bounds
    the clones of deferred keys. `layouts` declares keys known at start-up, so that the memory they need
    is checked and logged before the first step. `slow_wait_s` is how long a wait lasts before a warning says who holds
    what; 0 for never. `row_checks` says what is checked of delivered rows. `flight_recorder_events` events are kept in
    memory (0 for none) and written to a file in `flight_recorder_dir` when the cache raises. Raises
    `ConfigRefusedError` on a value out of range.
    """

    num_blocks: int
    block_size: int
    staging_depth: int = 4
    staging_capacity_tokens: int = 8192
    staging_claim_timeout_s: float = 60.0
    gpu_staging_bytes: int = 512 * _MIB
    layouts: Mapping[str, KeyLayout] = field(default_factory=dict)
    slow_wait_s: float = 5.0
    row_checks: RowChecks = RowChecks.OFF
    flight_recorder_events: int = 0
    flight_recorder_dir: str = "."

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value, least = getattr(self, name), 0 if name == "flight_recorder_events" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigRefusedError(f"{name} is {value!r}, and must be an integer of at least {least}")
        for name in ("staging_claim_timeout_s", "slow_wait_s"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
                raise ConfigRefusedError(f"{name} is {seconds!r}, and must be finite and not negative")
        if not isinstance(self.row_checks, RowChecks):
            raise ConfigRefusedError(
                f"row_checks is {self.row_checks!r}, and must be one of {', '.join(map(str, RowChecks))}"
            )

    @property
    def num_slots(self) -> int:
        """Slots of the KV cache."""
        return self.num_blocks * self.block_size

    @classmethod
    def from_vllm_config(
        cls, *, num_blocks: int, block_size: int, scheduler_config: Any, **overrides: Any
    ) -> PrefixCacheConfig:
        """A configuration whose staging holds the largest step the scheduler can make.

        Reads `max_num_batched_tokens` (may be None: then `max_model_len`) from `scheduler_config`.
        """
        capacity = getattr(scheduler_config, "max_num_batched_tokens", None) or scheduler_config.max_model_len
        sizes: dict[str, Any] = {"staging_capacity_tokens": int(capacity), **overrides}
        return cls(num_blocks=num_blocks, block_size=block_size, **sizes)

    @staticmethod
    def hidden_layout(model_config: Any) -> dict[str, KeyLayout]:
        """The layout of the hidden states that an engine's model configuration tells; empty where it does not.

        Reads `get_hidden_size()` and `dtype` (a `torch.dtype`).
        """
        dtype, size = getattr(model_config, "dtype", None), getattr(model_config, "get_hidden_size", None)
        if not isinstance(dtype, torch.dtype) or size is None:
            return {}
        return {HIDDEN_KEY: KeyLayout(dtype, (int(size()),))}


@dataclass(frozen=True)
class ModelCachePolicy:
    """Which outputs of a model are cached, and how.

    `deferred_keys` are per-token keys that are written when their request ends. `per_token_keys` and
    `per_request_keys` declare keys whose shape alone could be misread; an undeclared key is per-token at
    a step when its first dimension is that step's token count and it has two dimensions or more.
    """

    needs_full_hidden_states: bool = True
    deferred_keys: frozenset[str] = frozenset()
    per_token_keys: frozenset[str] = frozenset()
    per_request_keys: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("deferred_keys", "per_token_keys", "per_request_keys"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        both = self.per_request_keys & (self.deferred_keys | self.per_token_keys)
        if both:
            raise ConfigRefusedError(f"keys {sorted(both)} are declared per-request and per-token at once")

    @property
    def hidden_key(self) -> str | None:
        """The pool key of the hidden states, or None when the model opted out."""
        return HIDDEN_KEY if self.needs_full_hidden_states else None

    def get_hit_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys that a hit reads out of those known, the hidden states first."""
        known = [key for key in keys if key != HIDDEN_KEY]
        return [HIDDEN_KEY, *known] if self.needs_full_hidden_states and HIDDEN_KEY in keys else known

    def skip_immediate_mm(self, key: str) -> bool:
        """Whether `key` is not written at each step."""
        return key in self.deferred_keys

    @classmethod
    def from_model(cls, model: Any) -> ModelCachePolicy:
        """The policy that a model declares in `requires_full_prefix_cached_hidden_states` (absent: True),
        `deferred_prefix_cache_mm_keys`, `per_token_prefix_cache_mm_keys` and
        `per_request_prefix_cache_mm_keys` (absent: none)."""
        return cls(
            needs_full_hidden_states=bool(getattr(model, "requires_full_prefix_cached_hidden_states", True)),
            deferred_keys=frozenset(getattr(model, "deferred_prefix_cache_mm_keys", ()) or ()),
            per_token_keys=frozenset(getattr(model, "per_token_prefix_cache_mm_keys", ()) or ()),
            per_request_keys=frozenset(getattr(model, "per_request_prefix_cache_mm_keys", ()) or ()),
        )
