"""vLLM-Omni's names of the prefix cache: a runner changes one import and nothing else."""

from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.controller import (
    OmniPrefixCacheController,
    StagingBufferHolder,
    TaskState,
    WriteTask,
)
from palimpsest.prefix_cache.group_view import (
    FullAttentionGroupView,
    check_prefix_cache_kv_groups,
    stage_prefix_cache_config,
)
from palimpsest.prefix_cache.interface import (
    HIDDEN_KEY,
    ModelCachePolicy,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
    PrefixCacheConfig,
    WriteSchedule,
)
from palimpsest.prefix_cache.manager import OmniPrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs
from palimpsest.prefix_cache.payload import build_mm_cpu, to_payload_element
from palimpsest.prefix_cache.runner import OmniPrefixCacheRunnerMixin

__all__ = [
    "HIDDEN_KEY",
    "FullAttentionGroupView",
    "ModelCachePolicy",
    "OmniPrefixCacheController",
    "OmniPrefixCacheManager",
    "OmniPrefixCacheRunnerMixin",
    "OmniPrefixCacheStagingTimeoutError",
    "OmniPrefixCacheUnmatchError",
    "PrefixBlockPool",
    "PrefixCacheConfig",
    "StagingBufferHolder",
    "StepOutputs",
    "TaskState",
    "WriteSchedule",
    "WriteTask",
    "build_mm_cpu",
    "check_prefix_cache_kv_groups",
    "stage_prefix_cache_config",
    "to_payload_element",
]
