"""The host memory that a configuration takes, before any of it is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from palimpsest.errors import HostMemoryError
from palimpsest.memory import available_host_bytes, format_gib, lasting_bytes
from palimpsest.prefix_cache.interface import KeyLayout, PrefixCacheConfig

#: per slot and key: status, version and writer; pins of pending reads
_TABLE_BYTES_PER_SLOT = 1 + 8 + 8 + 4


class MemoryPlan(NamedTuple):
    """Host bytes by what they are for; pinned pages at their physical size."""

    pool_bytes: int
    staging_bytes: int
    table_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self)

    def __str__(self) -> str:
        return (
            f"{format_gib(self.total_bytes)} of host memory (pool {format_gib(self.pool_bytes)}, staging pages "
            f"{format_gib(self.staging_bytes)}, tables {format_gib(self.table_bytes)})"
        )


def plan_memory(
    config: PrefixCacheConfig,
    layouts: Mapping[str, KeyLayout],
    staged: Mapping[str, KeyLayout],
    *,
    pinned: bool,
) -> MemoryPlan:
    """What keys of `layouts` take; those in `staged` are written at each step and have staging pages."""
    page_rows = config.staging_capacity_tokens
    pages = sum(lasting_bytes(page_rows * layout.row_bytes, pinned) for layout in staged.values())
    return MemoryPlan(
        pool_bytes=sum(config.num_slots * layout.row_bytes for layout in layouts.values()),
        staging_bytes=config.staging_depth * pages,
        table_bytes=config.num_slots * len(layouts) * _TABLE_BYTES_PER_SLOT,
    )


def require_memory(plan: MemoryPlan, what: str) -> None:
    """Raise `HostMemoryError` when the host, or its control group, has less than `plan` needs."""
    available = available_host_bytes()
    if plan.total_bytes > available:
        raise HostMemoryError(f"{what} need {plan}, and {format_gib(available)} are available")
