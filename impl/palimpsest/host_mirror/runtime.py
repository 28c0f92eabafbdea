"""Making the mirror's parts: the host pool, private or shared by the local ranks, and a layer's cache handle.

The functions below reach one another, and what the process is like, by the names of this module, so that a runner
(or a test) can put its own in their place.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror import ops
from palimpsest.host_mirror.cache_handle import HostRowRuntime, HotRowGroup, SharedTopkState
from palimpsest.host_mirror.environment import current_platform, get_forward_context
from palimpsest.host_mirror.host_pool import allocate_shared, release_pinned_state
from palimpsest.host_mirror.hot_rows import HotRowTable
from palimpsest.host_mirror.index_group import SparseIndexGroup
from palimpsest.host_mirror.ranks import get_tp_group
from palimpsest.host_mirror.region import SharedHostRegion as SharedOffloadRegion
from palimpsest.host_mirror.registration import check_host_memory as check_hisparse_host_memory
from palimpsest.host_mirror.registration import registration_ranges as _hisparse_registration_ranges
from palimpsest.host_mirror.streams import HostEvent, new_stream
from palimpsest.page_locked import page_aligned_bytes
from palimpsest.page_locked import register as pin_tensor

logger = logging.getLogger(__name__)

__all__ = [
    "HiSparseCacheHandle",
    "HiSparseHostPool",
    "HostCacheHandle",
    "HostPool",
    "MirrorConfig",
    "ResolvedHiSparseConfig",
    "SharedOffloadRegion",
    "allocate_hisparse_host_pools",
    "allocate_pinned_host_pool",
    "check_hisparse_host_memory",
    "create_hisparse_cache_handle",
    "create_hot_row_group",
    "release_pinned_state",
    "use_shared_hisparse_host_pool",
]

# ------------------------------------------------------------------ the host pool


def use_shared_hisparse_host_pool(config: Any) -> bool:
    """Whether the engine's ranks are all tensor-parallel, on this node, with the same rows: they share one pool."""
    parallel = config.parallel_config
    size = parallel.tensor_parallel_size
    only_tensor_parallel = (
        parallel.pipeline_parallel_size,
        parallel.prefill_context_parallel_size,
        parallel.decode_context_parallel_size,
        parallel.nnodes_within_dp,
    ) == (1, 1, 1, 1)
    local = parallel.distributed_executor_backend == "mp" and parallel.world_size == size
    return bool(current_platform.is_cuda_alike() and size > 1 and only_tensor_parallel and local)


def allocate_hisparse_host_pools(
    config: Any, sizes: Sequence[int], num_blocks: int, host_block_stride: int, *, use_shared_host_pool: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
    """Host tensors of `sizes` bytes: `(pools, registered, region)`, flat and int8.

    Private pools are registered one by one, and `registered` has what to release. A shared pool is one region of
    `num_blocks * host_block_stride` bytes that every rank registers in chunks; when that fails the region is
    cleaned up, and only what had been registered is unregistered.
    """
    if not use_shared_host_pool:
        made = [allocate_pinned_host_pool(size) for size in sizes]
        return [pool for pool, _ in made], [registered for _, registered in made], None
    region, pools = allocate_shared(
        SharedOffloadRegion,
        engine_id=f"hisparse_{config.instance_id}_dp{config.parallel_config.data_parallel_index}",
        sizes=sizes,
        ranges=lambda: _hisparse_registration_ranges(sizes, num_blocks, host_block_stride),
        pool_bytes=num_blocks * host_block_stride,
        barrier=get_tp_group().barrier,
        memory_check=check_hisparse_host_memory,
        pin=pin_tensor,
    )
    return pools, [], region


def allocate_pinned_host_pool(nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A registered host pool of `nbytes`, flat and int8, and the tensor to hand to `release_pinned_state`."""
    check_hisparse_host_memory(nbytes)
    pool = page_aligned_bytes(nbytes)
    pin_tensor(pool)
    return pool, pool


class HostPool:
    """The host pool of an engine's KV cache configuration; `allocate` gives its bytes.

    `registered` is what was page-locked, `region` the shared mapping where there is one.
    """

    def __init__(self, vllm_config: Any, cache_config: Any) -> None:
        self._vllm_config, self._cache_config = vllm_config, cache_config
        self.registered: torch.Tensor | None = None
        self.region: Any = None

    def allocate(self, nbytes: int) -> torch.Tensor:
        """The pool's `nbytes`, flat. Tensors of the configuration that lie interleaved in one backing count once."""
        if not self._cache_config.hisparse_shared_host_pool:
            pool, self.registered = allocate_pinned_host_pool(nbytes)
            return pool
        resident = [tensor for tensor in self._cache_config.kv_cache_tensors if tensor.host_resident]
        _, _, self.region = allocate_hisparse_host_pools(
            self._vllm_config,
            [tensor.layer_stride for tensor in resident for _ in tensor.layers],
            self._cache_config.hisparse_host_num_blocks,
            self._cache_config.hisparse_host_block_stride,
            use_shared_host_pool=True,
        )
        base: torch.Tensor = self.region.base_tensor
        if base.nbytes < nbytes:
            raise BadMirrorInputError(f"{nbytes} bytes of a shared host pool of {base.nbytes}")
        self.registered = base
        return base[:nbytes]


# ------------------------------------------------------------------ a layer's cache handle


@dataclass(frozen=True)
class MirrorConfig:
    """Sizes of the sparse attention: positions selected per query row, hot rows per request, and the most distinct
    rows that one request selects in a step."""

    top_k: int
    device_buffer_size: int
    max_union_rows: int

    @classmethod
    def from_vllm_config(cls, vllm_config: Any, model_top_k: int) -> MirrorConfig | None:
        """What the engine's settings say; None where the mirror is off. `device_buffer_size` may be given in the
        connector's extra settings. Raises `BadMirrorInputError` when it is less than one step needs."""
        if vllm_config.kv_transfer_config is None:
            return None
        union = model_top_k * (1 + _speculative_tokens(vllm_config))
        extra = getattr(vllm_config.kv_transfer_config, "kv_connector_extra_config", None) or {}
        size = int(extra.get("device_buffer_size", 2 * union))
        if size < union:
            raise BadMirrorInputError(f"device_buffer_size is {size}, and a request can select {union} rows in a step")
        return cls(model_top_k, size, union)


ResolvedHiSparseConfig = MirrorConfig


def _speculative_tokens(config: Any) -> int:
    speculative = config.speculative_config
    return int(speculative.num_speculative_tokens) if speculative is not None else 0


class HostCacheHandle:
    """What an attention layer holds: its runtime, the batch that it runs, and the call after its rows are written."""

    #: the batch is a warm-up, and nothing is mirrored
    dummy_batch = False
    #: rows of the batch may yet be rejected (or are few): they are mirrored after the forward, all layers at once
    decode_batch = False
    #: this layer wrote rows of the batch that are to be mirrored
    host_mirror_required = False
    num_actual_tokens = 0
    num_decode_tokens = 0
    #: per row of the batch: resident slot, host slot and request state
    slot_mapping: torch.Tensor | None = None
    mirror_slot_mapping: torch.Tensor | None = None
    req_id_per_token: torch.Tensor | None = None

    def __init__(self, runtime: HostRowRuntime) -> None:
        self.runtime = runtime

    def submit_layer_mirror(self) -> None:
        """Mirror this layer's rows now; the worker binds it."""

    def finish_kv_update(self) -> None:
        """To be called by the layer once its rows are written. A full graph replays without Python, so that its
        rows are mirrored after the forward instead."""
        if self.dummy_batch or self.decode_batch:
            return
        if get_forward_context().cudagraph_runtime_mode.name != "FULL":
            self.submit_layer_mirror()


def create_hisparse_cache_handle(
    config: Any,
    *,
    model_top_k: int,
    is_index_group_leader: bool,
    row_width: int,
    kv_dtype: torch.dtype,
    index_group: SparseIndexGroup | None,
    device: torch.device | str,
) -> HostCacheHandle | None:
    """The cache handle of a layer with a sparse index; None where the settings turn the mirror off.

    The leader makes what its index group shares, its followers join it: nothing is made twice before the engine
    measures memory. Raises `BadMirrorInputError` for a follower whose group has no leader's handle yet.
    """
    resolved = ResolvedHiSparseConfig.from_vllm_config(config, model_top_k)
    if resolved is None:
        return None
    place = torch.device(device)
    if place.type == "cuda" and not _has_hisparse_ops():
        logger.warning("no batched copies: rows are copied one by one. The extra [cuda] brings cuda-bindings")
    group = index_group.hot_rows if index_group is not None else None
    if is_index_group_leader or index_group is None:
        scheduler = config.scheduler_config
        max_rows = min(scheduler.max_num_seqs * (1 + _speculative_tokens(config)), scheduler.max_num_batched_tokens)
        group = create_hot_row_group(index_group, resolved, scheduler.max_num_seqs, max_rows, place)
    if group is None:
        raise BadMirrorInputError("a follower's cache handle is made before its leader's")
    group.stats_row_bytes += row_width * kv_dtype.itemsize
    return HostCacheHandle(HostRowRuntime(group, is_index_group_leader, row_width, kv_dtype, place))


def create_hot_row_group(
    index_group: SparseIndexGroup | None, config: MirrorConfig, num_states: int, max_rows: int, device: torch.device
) -> HotRowGroup:
    """What the layers of one index group share, for `num_states` requests and `max_rows` query rows in a step."""
    group = HotRowGroup(
        table=HotRowTable(num_states, config.device_buffer_size),
        topk=_create_shared_topk_state(device, max_rows, config.top_k),
        copy_stream=index_group.side_stream if index_group is not None else _create_copy_stream(device),
        logical_topk_ready=index_group.logical_topk_ready if index_group is not None else HostEvent(),
    )
    if index_group is not None:
        index_group.hot_rows = group
    return group


def _has_hisparse_ops() -> bool:
    return ops.batched_copy() is not None


def _create_shared_topk_state(device: torch.device, max_rows: int, top_k: int) -> SharedTopkState:
    return SharedTopkState(device, max_rows, top_k)


def _create_copy_stream(device: torch.device) -> Any:
    return new_stream(device)


HiSparseCacheHandle = HostCacheHandle
HiSparseHostPool = HostPool
