"""The runner's batch as slots, and the configurations that the slot arithmetic does not hold for.

A slot is `block_id * block_size + offset`, with one block id per column of the block table. Every layout
or feature for which that is not so is refused here, before anything is written: a wrong slot is silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from palimpsest.errors import BadStepError, ConfigRefusedError
from palimpsest.prefix_cache.interface import PrefixCacheConfig

IntArray = np.ndarray

_FULL_ATTENTION = "FullAttentionSpec"  # MLA's spec inherits from it
_UNIFORM = "UniformTypeKVCacheSpecs"  # one group whose layers differ in size but not in kind


class FullAttentionGroupView:
    """The slots of a batch whose KV cache is one full-attention group.

    `input_batch` has `req_ids`, `req_id_to_index`, `num_computed_tokens_cpu` and
    `block_table[0].block_table.cpu`; they are read anew at each call. Raises `ConfigRefusedError` for a
    block table whose columns are not the allocator's blocks, or whose tokens are striped over ranks.
    """

    def __init__(self, input_batch: Any, block_size: int) -> None:
        self.block_size = block_size
        self._batch = input_batch
        _check_tables(getattr(input_batch.block_table, "block_tables", ()))
        _check_layout(input_batch.block_table[0], block_size)

    def batch_req_ids(self) -> list[str]:
        """The ids of the batch's requests, in the order of their rows."""
        return list(self._batch.req_ids)

    def step_slots_cpu(self, req_ids: Sequence[str], num_scheduled: Mapping[str, int]) -> torch.Tensor:
        """The slots of the step's tokens, int64 on the host, request by request in the order of `req_ids`.

        Positions past the end of the block table are dropped. Raises `BadStepError` for a scheduled
        request that the batch does not have.
        """
        scheduled = [req_id for req_id in req_ids if num_scheduled.get(req_id, 0) > 0]
        counts = np.fromiter((num_scheduled[req_id] for req_id in scheduled), np.int64, len(scheduled))
        rows = self._table_rows(scheduled)
        starts = np.asarray(self._batch.num_computed_tokens_cpu)[rows].astype(np.int64)
        table = np.asarray(self._batch.block_table[0].block_table.cpu)
        return torch.from_numpy(_slots(table, rows, starts, counts, self.block_size))

    def _table_rows(self, req_ids: list[str]) -> IntArray:
        index = self._batch.req_id_to_index
        try:
            return np.fromiter((index[req_id] for req_id in req_ids), np.int64, len(req_ids))
        except KeyError as error:
            raise BadStepError(f"request {error.args[0]!r} is scheduled and not in the batch") from None


def _slots(table: IntArray, rows: IntArray, starts: IntArray, counts: IntArray, block_size: int) -> IntArray:
    """Slots of positions `starts[i]` to `starts[i] + counts[i]` of the requests at `rows` of the table."""
    before = np.cumsum(counts) - counts
    positions = np.repeat(starts - before, counts) + np.arange(int(counts.sum()), dtype=np.int64)
    columns, offsets = np.divmod(positions, block_size)
    token_rows = np.repeat(rows, counts)
    inside = columns < table.shape[1]
    if not inside.all():
        token_rows, columns, offsets = token_rows[inside], columns[inside], offsets[inside]
    # 64-bit before the product: block_id * block_size of an int32 table could wrap.
    slots: IntArray = table[token_rows, columns].astype(np.int64) * block_size + offsets
    return slots


def _check_tables(tables: Sequence[Any]) -> None:
    if len(tables) > 1:
        raise ConfigRefusedError(
            f"the batch has {len(tables)} block tables, and it takes a single full-attention group"
        )


def _check_layout(table: Any, block_size: int) -> None:
    per_block = getattr(table, "blocks_per_kv_block", 1)
    if getattr(table, "use_hybrid_blocks", False) or per_block != 1:
        raise ConfigRefusedError(
            f"the block table has {per_block} kernel blocks per KV block (kernel_block_size differs from the "
            "allocator's block), and slots need one allocator block per column"
        )
    for attribute, feature in (("dcp_world_size", "decode"), ("pcp_world_size", "prefill")):
        ranks = getattr(table, attribute, 1)
        if ranks > 1:
            raise ConfigRefusedError(
                f"{feature} context parallel over {ranks} ranks stripes a request's tokens over tables, "
                "and slots need them in one"
            )
    kv_size = getattr(table, "kv_cache_block_size", None) or getattr(table, "block_size", None) or block_size
    if kv_size != block_size:
        raise ConfigRefusedError(
            f"the block table's kv_cache_block_size {kv_size} does not match the block_size {block_size}"
        )


def check_prefix_cache_kv_groups(groups: Sequence[Any]) -> None:
    """Raise `ConfigRefusedError` unless `groups` is one KV cache group of full attention."""
    if len(groups) != 1:
        raise ConfigRefusedError(
            f"the prefix cache needs a single full-attention KV cache group, and the model has {len(groups)}"
        )
    others = [type(spec).__name__ for spec in _layer_specs(groups[0]) if not _is_full_attention(spec)]
    if others:
        raise ConfigRefusedError(
            f"the prefix cache needs a single full-attention KV cache group, and this is {others[0]}"
        )


def _layer_specs(group: Any) -> Iterator[Any]:
    spec = getattr(group, "kv_cache_spec", None)
    if spec is not None and _is_named(spec, _UNIFORM):
        yield from spec.kv_cache_specs.values()
    else:
        yield spec


def _is_full_attention(spec: Any) -> bool:
    return _is_named(spec, _FULL_ATTENTION)


def _is_named(spec: Any, name: str) -> bool:
    """Whether `spec` is of a class of this name; told by name, since the engine is not imported."""
    return any(base.__name__ == name for base in type(spec).__mro__)


def stage_prefix_cache_config(
    *,
    kv_cache_config: Any,
    cache_config: Any,
    kv_transfer_config: Any,
    scheduler_config: Any,
    model_config: Any,
    is_pooling_model: bool,
    speculative_config: Any,
    settings: Mapping[str, Any] | None = None,
) -> PrefixCacheConfig | None:
    """The cache's configuration for an engine stage, or None where it has no use: prefix caching is off, or
    the model is a pooling model. Raises `ConfigRefusedError` for an engine that it cannot serve correctly.

    The layout of the hidden states is declared from `model_config` where it tells it, so that their memory is
    checked and allocated before the first step. `settings` are fields that an operator set (`read_settings`).
    """
    if is_pooling_model or not cache_config.enable_prefix_caching:
        return None
    _refuse_features(cache_config, kv_transfer_config, speculative_config)
    check_prefix_cache_kv_groups(kv_cache_config.kv_cache_groups)
    return PrefixCacheConfig.from_vllm_config(
        num_blocks=kv_cache_config.num_blocks,
        block_size=cache_config.block_size,
        scheduler_config=scheduler_config,
        layouts=PrefixCacheConfig.hidden_layout(model_config),
        **(settings or {}),
    )


def _refuse_features(cache_config: Any, kv_transfer_config: Any, speculative_config: Any) -> None:
    if kv_transfer_config is not None and kv_transfer_config.is_kv_consumer:
        raise ConfigRefusedError(
            "a KV connector that loads KV (is_kv_consumer) makes hits on rows that no forward here computed"
        )
    if speculative_config is not None:
        raise ConfigRefusedError(
            "speculative decoding schedules draft tokens: num_computed_tokens is optimistic, and rows of "
            "rejected tokens would be cached"
        )
    unit, block_size = getattr(cache_config, "prefix_match_unit", None), cache_config.block_size
    if unit is not None and unit % block_size:
        raise ConfigRefusedError(
            f"prefix_match_unit {unit} is no multiple of block_size {block_size}: hits must be block-aligned"
        )
