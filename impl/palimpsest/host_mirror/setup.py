"""Putting a worker together: caches, host pool, handles, streams and events, for one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palimpsest.host_mirror.batch import HostMirrorConfig
from palimpsest.host_mirror.cache_handle import HostRowRuntime
from palimpsest.host_mirror.host_pool import allocate_shared
from palimpsest.host_mirror.index_group import SparseIndexGroupBuilder
from palimpsest.host_mirror.ranks import RankGroup
from palimpsest.host_mirror.region import SharedHostRegion
from palimpsest.host_mirror.registration import (
    check_host_memory,
    registration_ranges,
)
from palimpsest.host_mirror.runtime import HostCacheHandle, MirrorConfig, create_hot_row_group, release_pinned_state
from palimpsest.host_mirror.state import SlotMappingStaging
from palimpsest.host_mirror.streams import CALLER, DeviceEvent, HostEvent, HostStream, new_stream
from palimpsest.host_mirror.tracing import RankTrace
from palimpsest.host_mirror.worker import HostMirrorWorker
from palimpsest.memory import allocate_host
from palimpsest.page_locked import page_aligned_bytes, register
from palimpsest.sync import Sync


def build_worker(
    config: HostMirrorConfig, ranks: RankGroup, sync: Sync, trace: RankTrace | None = None
) -> HostMirrorWorker:
    """A worker that is ready for its first step. What fails on the way leaves no host memory registered."""
    worker = HostMirrorWorker()
    if trace is not None:
        worker._trace, worker._section = trace, trace.section
    worker.ranks, worker.is_host_writer = ranks, ranks.rank == 0
    worker.on_host = config.torch_device.type == "cpu"
    worker.kernel_block_size, worker.host_num_blocks = config.block_rows, config.num_host_blocks
    _allocate_pool(worker, config, ranks)
    try:
        _allocate_device(worker, config)
        _make_streams(worker, config, sync)
    except BaseException:
        release_pinned_state([], worker.pinned_host_pools, worker.shared_host_region)
        raise
    worker._initialized = True
    return worker


# ------------------------------------------------------------------ memory


def _allocate_pool(worker: HostMirrorWorker, config: HostMirrorConfig, ranks: RankGroup) -> None:
    """Layer after layer in one pool, each [slots, width]; registered in chunks where there is a device."""
    sizes = [config.num_host_slots * spec.row_width * config.dtype.itemsize for spec in config.layers]
    stride = sum(sizes) // config.num_host_blocks
    ranges = registration_ranges(sizes, config.num_host_blocks, stride, config.max_chunk_bytes)
    if ranks.size > 1:
        worker.shared_host_region, pools = allocate_shared(
            SharedHostRegion,
            engine_id=config.engine_id,
            sizes=sizes,
            ranges=lambda: ranges,
            pool_bytes=sum(sizes),
            barrier=ranks.barrier,
            memory_check=check_host_memory,
            pin=None if worker.on_host else register,
        )
    else:
        pools = _allocate_private(worker, sizes, ranges)
    worker.host_caches = [
        pool.view(config.dtype).view(config.num_host_slots, spec.row_width)
        for pool, spec in zip(pools, config.layers, strict=True)
    ]
    base = pools[0].data_ptr()
    worker.host_seams = np.array([base + start for start, _ in ranges[1:]], dtype=np.int64)


def _allocate_private(
    worker: HostMirrorWorker, sizes: list[int], ranges: tuple[tuple[int, int], ...]
) -> list[torch.Tensor]:
    check_host_memory(sum(sizes))
    whole = page_aligned_bytes(sum(sizes))
    pinned: list[torch.Tensor] = []
    worker.pinned_host_pools = pinned
    if not worker.on_host:
        try:
            for start, stop in ranges:
                register(whole[start:stop])
                pinned.append(whole[start:stop])
        except BaseException:
            release_pinned_state([], pinned)
            raise
    return list(torch.split(whole, sizes))


def _allocate_device(worker: HostMirrorWorker, config: HostMirrorConfig) -> None:
    device, dtype = config.torch_device, config.dtype
    worker.resident_caches = [
        torch.zeros((config.num_resident_blocks, config.block_rows, spec.row_width), dtype=dtype, device=device)
        for spec in config.layers
    ]
    hot = [(config.max_requests, config.hot_rows, spec.row_width) for spec in config.layers]
    worker.hot_backing = torch.zeros(sum(int(np.prod(shape)) for shape in hot), dtype=dtype, device=device)
    parts = worker.hot_backing.split([int(np.prod(shape)) for shape in hot])
    buffers = [part.view(shape) for part, shape in zip(parts, hot, strict=True)]
    worker.cache_layer_names = [spec.name for spec in config.layers]
    worker.cache_handles = _make_handles(worker, config, buffers)
    worker.leader_runtimes = [handle.runtime for handle in worker.cache_handles if handle.runtime.is_group_leader]
    worker.request_state_indices = torch.full((config.max_requests,), -1, dtype=torch.int32, device=device)


def _make_handles(
    worker: HostMirrorWorker, config: HostMirrorConfig, buffers: list[torch.Tensor]
) -> list[HostCacheHandle]:
    device = config.torch_device
    positions = torch.empty((config.max_rows, config.top_k), dtype=torch.int32, device=device)
    builder = SparseIndexGroupBuilder(positions)
    sizes = MirrorConfig(config.top_k, config.hot_rows, config.top_k * (1 + config.draft_tokens))
    handles: list[HostCacheHandle] = []
    for number, spec in enumerate(config.layers):
        group, _ = builder.register_layer(spec.leader)
        shared = group.hot_rows
        if spec.leader:
            shared = create_hot_row_group(group, sizes, config.max_requests, config.max_rows, device)
        runtime = HostRowRuntime(shared, spec.leader, spec.row_width, config.dtype, device, config.eager, spec.source)
        shared.stats_row_bytes += runtime.row_bytes
        runtime.resident, runtime.host = worker.resident_caches[number], worker.host_caches[number]
        runtime.hot = buffers[number]
        handles.append(HostCacheHandle(runtime))
        handles[-1].submit_layer_mirror = _report(worker, number)  # type: ignore[method-assign]
    return handles


def _report(worker: HostMirrorWorker, layer: int) -> Any:
    return lambda: worker._enqueue_layer_mirror(layer)


# ------------------------------------------------------------------ streams and events


def _make_streams(worker: HostMirrorWorker, config: HostMirrorConfig, sync: Sync) -> None:
    def event() -> Any:
        if worker.on_host:
            return HostEvent(sync, config.timeout_s)
        kind: Any = DeviceEvent  # whose constructor is not typed
        made = kind()
        made.bound = sync, config.timeout_s
        return made

    device = config.torch_device
    worker.dma_stream = (
        HostStream("palimpsest-mirror-copy", sync, config.timeout_s) if worker.on_host else new_stream(device)
    )
    worker.host_write_events = event(), event()
    worker.host_write_event = worker.host_write_events[1]
    worker._forward_ready_event, worker._metrics_event = event(), event()
    worker._layer_ready_events = [event() for _ in config.layers]
    worker._draft_layers = tuple(number for number, spec in enumerate(config.layers) if spec.draft)
    worker.refines_row_mirrors = config.refines
    if config.refines:
        slots = allocate_host((2 * config.max_rows,), torch.int64, pinned=not worker.on_host)
        stream = CALLER if worker.on_host else new_stream(device)
        worker._slot_mapping_staging = SlotMappingStaging(stream, event(), slots)
