"""What the scheduler tells the mirror's worker, as values.

A *page* is one KV block of `kernel_block_size` rows. A row lies at a resident slot (in each of the device's page
tables, the *sources*: layers of one cache group share one) and, once mirrored, at a host slot, which is the same for
all layers. Both are `block_id * kernel_block_size + offset`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from palimpsest.kv_cache.copies import KVCacheBlockCopy


class SparseKVRowMirror(NamedTuple):
    """`num_rows` consecutive rows, from resident slot `source_starts[source]` to host slot `destination_start`."""

    source_starts: tuple[int, ...]
    destination_start: int
    num_rows: int


class SparseKVPageTransfer(NamedTuple):
    """One whole page between a host block and the resident blocks, one for each source.

    To the host, before or after the forward of its step; or, with `restore`, to the device before the forward. It is
    acknowledged by `transfer_id` once the rows of every layer are where they should be.
    """

    transfer_id: int
    host_block_id: int
    resident_block_ids: tuple[int, ...]
    after_forward: bool
    restore: bool = False


class PageResidency(NamedTuple):
    """Page `page` of the request in state line `state` lies in `resident_block_ids` now; nowhere if there are none."""

    state: int
    page: int
    resident_block_ids: tuple[int, ...] | None


@dataclass(frozen=True)
class StepCommand:
    """The page transfers of a step, in the order in which they are to be done."""

    transfers: tuple[SparseKVPageTransfer, ...] = ()


@dataclass
class StepMetadata:
    """What the scheduler decided for one step; an idle step has the defaults."""

    #: copies of host blocks, done before anything else of the step
    host_block_copies: Sequence[KVCacheBlockCopy] = ()
    command: StepCommand | None = None
    #: host blocks that got a new tenant: rows of them that lie in hot buffers are nobody's any more
    source_block_ids: Sequence[int] = ()
    #: by request: where the rows go that this step may write
    row_mirrors: Mapping[str, tuple[SparseKVRowMirror, ...]] = field(default_factory=dict)
    #: attention can read every row of the batch on the device, and asks for no hot rows
    all_context_pages_resident: bool = True
    #: the step writes its rows to resident pages; otherwise none are mirrored
    row_mirrors_from_resident: bool = True
    #: by request: pages that came to or left the device
    residency_updates: Mapping[str, Sequence[PageResidency]] = field(default_factory=dict)


STAT_NAMES = (
    "cache_hits",
    "cache_misses",
    "host_to_device_bytes",
    "host_cache_usage_perc",
    "pending_page_transfers",
    "host_block_lifetime_seconds",
    "host_block_idle_before_evict_seconds",
    "host_block_reuse_gap_seconds",
)


@dataclass
class MirrorStats:
    """Counts since the last report, by name; each a list, so that reports can be put together."""

    data: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in STAT_NAMES})
