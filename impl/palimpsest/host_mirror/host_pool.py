"""Host pools: made, registered and released, whoever says what a region is and how memory is page-locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from palimpsest.host_mirror.registration import Range
from palimpsest.page_locked import unregister


def allocate_shared(
    make_region: Callable[..., Any],
    *,
    engine_id: str,
    sizes: Sequence[int],
    ranges: Callable[[], Iterable[Range]],
    pool_bytes: int,
    barrier: Callable[[], None],
    memory_check: Callable[[int], None],
    pin: Callable[[torch.Tensor], None] | None,
) -> tuple[Any, list[torch.Tensor]]:
    """A region of `pool_bytes` that all ranks map, and its views of `sizes` bytes (flat, int8).

    `pin` registers the chunks `ranges`; without it nothing is. When anything fails the region is cleaned up: what
    was registered is unregistered, nothing else.
    """
    region = make_region(
        engine_id=engine_id,
        num_chunks=1,
        rank=0,
        kv_bytes_per_chunk=pool_bytes,
        cpu_page_size=sum(sizes),
        barrier=barrier,
        creator_memory_check=memory_check,
        populate_only_on_creator=True,
    )
    try:
        if pin is not None:
            _register(region, ranges(), pin)
        return region, [region.create_next_canonical_view(size)[0] for size in sizes]
    except BaseException:
        region.cleanup()
        raise


def _register(region: Any, ranges: Iterable[Range], pin: Callable[[torch.Tensor], None]) -> None:
    for start, stop in ranges:
        chunk = region.base_tensor[start:stop]
        pin(chunk)
        region.pinned_addresses.append(chunk.data_ptr())
        region.is_pinned = True


def release_pinned_state(
    runtimes: Iterable[Any], pinned_host_pools: Iterable[torch.Tensor], region: Any = None
) -> None:
    """Let go of the host memory: what `runtimes` see of it, then the registrations, then the region's mapping."""
    for runtime in runtimes:
        runtime.host = None
    try:
        unregister([pool.data_ptr() for pool in pinned_host_pools])
    finally:
        if region is not None:
            region.cleanup()
