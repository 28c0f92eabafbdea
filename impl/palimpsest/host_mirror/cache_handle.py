"""What the layers of an index group share for their hot rows, and what one layer has of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror import ops
from palimpsest.host_mirror.hot_rows import HotRowTable, PageTables, Selection, fetch_rows, gather_rows, select
from palimpsest.host_mirror.rows import IntArray
from palimpsest.host_mirror.streams import run_on


@dataclass
class SharedTopkState:
    """The selection of a group's leader, for its followers: at most `max_rows` query rows of `top_k` positions."""

    device: torch.device
    max_rows: int
    top_k: int
    selection: Selection | None = None


@dataclass
class HotRowGroup:
    """Shared by the layers of one index group."""

    table: HotRowTable
    topk: Any
    copy_stream: Any
    logical_topk_ready: Any
    #: hits and misses since the last report, and the copy of them that a report reads
    swap_stats: torch.Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.uint64))
    swap_stats_host: torch.Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.uint64))
    #: bytes that a miss moves: one row of every layer of the group
    stats_row_bytes: int = 0

    def count(self, hits: int, misses: int) -> None:
        """Add to the statistics."""
        before = self.swap_stats.tolist()
        self.swap_stats.copy_(torch.tensor([before[0] + hits, before[1] + misses], dtype=torch.uint64))


@dataclass
class HostRowRuntime:
    """One layer's rows: on the device in pages (`resident`), on the host, and hot."""

    index_group: HotRowGroup
    is_group_leader: bool
    row_width: int
    dtype: torch.dtype
    device: torch.device
    #: rows are mirrored as they are written, so that a page needs no copy of its own when it is full
    eager_host_mirror: bool = True
    #: the page table that places this layer's resident pages
    resident_source_index: int = 0
    #: bound when the caches are: [blocks, rows, width], [slots, width], [states, capacity, width]
    resident: torch.Tensor | None = None
    host: torch.Tensor | None = None
    hot: torch.Tensor | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.row_width * self.dtype.itemsize

    def select(self, pages: PageTables, states: IntArray, positions: IntArray, block_rows: int) -> None:
        """The leader: plan the rows at `positions` [rows, top_k] for the whole group."""
        group, topk = self.index_group, self.index_group.topk
        if not self.is_group_leader:
            raise BadMirrorInputError("the leader of an index group selects; a follower has its selection")
        if positions.shape[0] > topk.max_rows or positions.shape[1] > topk.top_k:
            raise BadMirrorInputError(
                f"positions of shape {positions.shape} selected; at most {(topk.max_rows, topk.top_k)}"
            )
        topk.selection = select(group.table, pages, states, positions, block_rows)
        group.count(topk.selection.hits, topk.selection.missing_slots.size)
        group.logical_topk_ready.record()

    def gather(self, pages: PageTables) -> torch.Tensor:
        """This layer's rows of the group's selection, [rows, top_k, width]."""
        selection = self.index_group.topk.selection
        if selection is None or self.resident is None or self.host is None or self.hot is None:
            raise BadMirrorInputError("rows are gathered before the leader has selected, or the caches are bound")
        self._fetch(selection, self.host, self.hot)
        return gather_rows(selection, pages.resident[self.resident_source_index], self.resident, self.hot)

    def _fetch(self, selection: Selection, host: torch.Tensor, hot: torch.Tensor) -> None:
        if hot.device.type == "cpu":
            fetch_rows(selection, host, hot)
            return
        width, stream = self.row_bytes, self.index_group.copy_stream
        current = torch.cuda.current_stream(hot.device)
        src = torch.from_numpy(host.data_ptr() + selection.missing_slots * width)
        dst = torch.from_numpy(hot.data_ptr() + selection.missing_hot * width)
        stream.wait_stream(current)  # earlier readers of the places, and the mirrored rows
        run_on(stream, lambda: ops.swap_blocks_batch(src, dst, torch.full_like(src, width)))
        current.wait_stream(stream)

    def invalidate_written_slots(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """The rows at host `slots` were written anew, one for each line of `states`; their hot copies are stale."""
        count = min(slots.numel(), states.numel())
        written = slots[:count].cpu().numpy().astype(np.int64)
        self.index_group.table.forget_rows(states[:count].cpu().numpy().astype(np.int64), written)
