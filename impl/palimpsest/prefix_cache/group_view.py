"""The runner's batch as the cache sees it, and the configurations that it refuses.

`FullAttentionGroupView` turns the block table of a single full-attention group into slots. The layout that
it relies on (one allocator block per table column, no striping) is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from palimpsest.errors import ConfigRefusedError
from palimpsest.prefix_cache.interface import PrefixCacheConfig


class FullAttentionGroupView:
    """Slots of a batch with one full-attention KV cache group.

    Reads the batch at each call: `req_ids`, `req_id_to_index`, `num_computed_tokens_cpu` and
    `block_table[0].block_table.cpu`. Raises `ConfigRefusedError` for a block table whose kernel blocks are
    not the allocator's, that stripes tokens over ranks, or whose block size is another.
    """

    def __init__(self, input_batch: Any, *, block_size: int) -> None:
        self.block_size = block_size
        self._batch = input_batch
        _check_layout(input_batch.block_table[0], block_size)

    def batch_req_ids(self) -> list[str]:
        """The batch's requests in row order."""
        return list(self._batch.req_ids)

    def step_slots_cpu(self, req_ids: Sequence[str], num_scheduled: Mapping[str, int]) -> torch.Tensor:
        """The slots of this step's tokens, request after request, as int64 on the host.

        Positions past the block table are dropped.
        """
        counts = np.array([max(0, num_scheduled.get(req_id, 0)) for req_id in req_ids], dtype=np.int64)
        total = int(counts.sum())
        if total == 0:
            return torch.empty(0, dtype=torch.int64)
        lines = np.array([self._batch.req_id_to_index[req_id] for req_id in req_ids], dtype=np.int64)
        starts = np.asarray(self._batch.num_computed_tokens_cpu)[lines].astype(np.int64)
        line = np.repeat(lines, counts)
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._slots(line, np.repeat(starts, counts) + within)

    def _slots(self, line: np.ndarray, position: np.ndarray) -> torch.Tensor:
        table = np.asarray(self._batch.block_table[0].block_table.cpu)
        block = position // self.block_size
        inside = block < table.shape[1]
        if not inside.all():
            line, position, block = line[inside], position[inside], block[inside]
        slots = table[line, block].astype(np.int64) * self.block_size + position % self.block_size
        return torch.from_numpy(slots)


def _check_layout(group: Any, block_size: int) -> None:
    per_block = getattr(group, "blocks_per_kv_block", 1)
    if getattr(group, "use_hybrid_blocks", False) or per_block != 1:
        raise ConfigRefusedError(
            f"the block table has {per_block} kernel blocks per KV block (kernel_block_size is not the block size); "
            "the prefix cache needs one"
        )
    ranks = getattr(group, "dcp_world_size", 1)
    if ranks != 1:
        raise ConfigRefusedError(f"decode context parallel over {ranks} ranks stripes tokens; the cache needs 1")
    size = getattr(group, "kv_cache_block_size", block_size)
    if size != block_size:
        raise ConfigRefusedError(f"the block table's block size {size} does not match the cache's {block_size}")


def check_prefix_cache_kv_groups(groups: Sequence[Any]) -> None:
    """Raise `ConfigRefusedError` unless there is exactly one KV cache group."""
    if len(groups) != 1:
        raise ConfigRefusedError(
            f"the prefix cache needs a single full-attention KV cache group, and there are {len(groups)}"
        )


def stage_prefix_cache_config(
    *,
    kv_cache_config: Any,
    cache_config: Any,
    kv_transfer_config: Any,
    scheduler_config: Any,
    model_config: Any,
    is_pooling_model: bool,
    speculative_config: Any = None,
) -> PrefixCacheConfig | None:
    """The prefix cache's configuration for a pipeline stage; None where the stage has no prefix cache.

    Prefix caching switched off and pooling models mean None. Raises `ConfigRefusedError` for what would be
    served wrongly: a KV consumer, speculative decoding, hits finer than a block, several KV cache groups.
    """
    if not cache_config.enable_prefix_caching or is_pooling_model:
        return None
    _refuse_unsupported(cache_config, kv_transfer_config, speculative_config)
    check_prefix_cache_kv_groups(kv_cache_config.kv_cache_groups)
    return PrefixCacheConfig.from_vllm_config(
        num_blocks=kv_cache_config.num_blocks,
        block_size=cache_config.block_size,
        scheduler_config=scheduler_config,
        layouts=PrefixCacheConfig.hidden_layout(model_config),
    )


def _refuse_unsupported(cache_config: Any, kv_transfer_config: Any, speculative_config: Any) -> None:
    if kv_transfer_config is not None and kv_transfer_config.is_kv_consumer:
        raise ConfigRefusedError(
            "a KV connector that consumes KV reports transferred tokens as computed; the cache has no rows for them"
        )
    if speculative_config is not None:
        raise ConfigRefusedError(
            f"speculative decoding ({getattr(speculative_config, 'method', 'unnamed')}) counts draft tokens as "
            "computed before they are verified"
        )
    unit = getattr(cache_config, "prefix_match_unit", None)
    if unit is not None and unit != cache_config.block_size:
        raise ConfigRefusedError(
            f"prefix_match_unit is {unit} and block_size is {cache_config.block_size}; hits must be block-aligned"
        )
