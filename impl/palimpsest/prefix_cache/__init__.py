"""The prefix cache: a host mirror of hidden states and multimodal rows of reused prompt prefixes."""

from palimpsest.prefix_cache.interface import (
    HIDDEN_KEY,
    KeyLayout,
    ModelCachePolicy,
    PrefixCacheConfig,
    WriteSchedule,
)
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs

__all__ = [
    "HIDDEN_KEY",
    "KeyLayout",
    "ModelCachePolicy",
    "PrefixCacheConfig",
    "PrefixCacheManager",
    "StepOutputs",
    "WriteSchedule",
]
