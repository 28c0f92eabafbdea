"""Handing copies to the copy stream: descriptors, the order of streams, the events behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from palimpsest.host_mirror.actions import mirror_action
from palimpsest.host_mirror.descriptors import DescriptorBatch, page_copies, reclaim, row_copies, take
from palimpsest.host_mirror.rows import IntArray
from palimpsest.host_mirror.state import WorkerState
from palimpsest.host_mirror.streams import event_for, run_on
from palimpsest.host_mirror.tracing import handed_rows
from palimpsest.host_mirror.types import SparseKVPageTransfer

Copies = tuple[IntArray, IntArray, IntArray]


class DmaMixin(WorkerState):
    """Copies from the device's pages to the host, on the writer."""

    def _enqueue_row_dma(self, layers: Iterable[int], ready_event: Any = None) -> None:
        """Queue the copies of the step's rows of `layers`, once `ready_event` (or the current stream) is done."""
        copies = [
            row_copies(
                self._row_mirrors,
                self.cache_handles[layer].runtime.resident_source_index,
                self.resident_caches[layer],
                self.host_caches[layer],
                self.host_seams,
            )
            for layer in layers
        ]
        descriptors, count = self._fill(copies)
        self._submit_dma_descriptors(descriptors, count, ready_event=ready_event)

    def _enqueue_transfers(self, transfers: Iterable[SparseKVPageTransfer]) -> None:
        """Queue the copies of whole pages to the host, every layer's; nothing on a rank that does not write."""
        listed = list(transfers)
        if not self.is_host_writer or not listed:
            return
        host_blocks = np.array([transfer.host_block_id for transfer in listed], dtype=np.int64)
        copies: list[Copies] = []
        for layer, handle in enumerate(self.cache_handles):
            source = handle.runtime.resident_source_index
            blocks = np.array([transfer.resident_block_ids[source] for transfer in listed], dtype=np.int64)
            copies.append(page_copies(blocks, host_blocks, self.resident_caches[layer], self.host_caches[layer]))
        descriptors, count = self._fill(copies)
        transfer_ids = tuple(transfer.transfer_id for transfer in listed)
        self._submit_dma_descriptors(descriptors, count, transfer_ids=transfer_ids)

    def _fill(self, copies: list[Copies]) -> tuple[DescriptorBatch, int]:
        reclaim(self._pending_dma_descriptors, self._dma_free_descriptors)
        count = sum(src.size for src, _, _ in copies)
        batch, stop = take(self._dma_free_descriptors, count), 0
        for src, dst, sizes in copies:
            stop = batch.put(stop, src, dst, sizes)
        return batch, count

    def _submit_dma_descriptors(
        self,
        descriptors: DescriptorBatch,
        count: int,
        *,
        ready_event: Any = None,
        transfer_ids: tuple[int, ...] = (),
    ) -> None:
        """Run the first `count` descriptors on the copy stream, and record behind them the step's host-write event
        and one that frees the batch (and acknowledges `transfer_ids`)."""
        stream = self.dma_stream
        if ready_event is not None:
            stream.wait_event(ready_event)
        else:
            stream.wait_stream(self._current_stream())
        pieces = descriptors.src[:count], descriptors.dst[:count], descriptors.sizes[:count]
        run_on(stream, self._traced_copy(pieces) if self._trace is not None else lambda: self._swap(*pieces))
        self.host_write_event.record(stream)
        landed = event_for(stream)
        landed.record(stream)
        self._pending_dma_descriptors.append((landed, descriptors))
        if transfer_ids:
            self._acknowledge_at(landed, transfer_ids)
        self._dma_submitted = True

    def _traced_copy(self, pieces: tuple[Any, Any, Any]) -> Callable[[], None]:
        """The copy of `pieces`, which tells of itself where the host can see it land."""
        handed = handed_rows(self, *pieces)
        self._handed = (*self._handed, *handed)

        def copy() -> None:
            self._swap(*pieces)
            if self.on_host:
                self._copy_runs(handed)

        return copy

    @mirror_action("copy_runs")
    def _copy_runs(self, handed: list[dict[str, Any]]) -> None:
        """Rows have landed."""
        assert self._trace is not None
        with self._section:
            trace, names = self._trace, self.cache_layer_names
            tags = [trace.tags(names[each["layer"]], self.host_caches[each["layer"]][each["host"]]) for each in handed]
            rows = [{**each, "tags": tag} for each, tag in zip(handed, tags, strict=True)]
            trace.emit("copy_runs", {}, {"rows": rows})

    def _acknowledge_at(self, event: Any, transfer_ids: tuple[int, ...]) -> None:
        self._enqueued_transfer_ids.extend(transfer_ids)
        self._pending_transfer_events.append((event, transfer_ids))
