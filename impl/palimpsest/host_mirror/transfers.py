"""Page transfers: full pages to the host, pages back to the device, and when they are acknowledged.

A transfer to the host is *clean* once it is acknowledged: the device's page may go. So it is queued behind the rows
of every layer, those that the draft model writes after the forward included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.host_mirror.actions import mirror_action
from palimpsest.host_mirror.row_mirrors import RowMirrorMixin
from palimpsest.host_mirror.streams import event_for
from palimpsest.host_mirror.types import SparseKVPageTransfer


class TransferMixin(RowMirrorMixin):
    """Page transfers of a worker."""

    def _submit_transfers(self, transfers: Sequence[SparseKVPageTransfer]) -> None:
        """Queue transfers to the host. Where rows are mirrored as they are written, only their end is recorded."""
        if not transfers:
            return
        if all(handle.runtime.eager_host_mirror for handle in self.cache_handles):
            self._record_transfer_completion(transfers)
        else:
            self._enqueue_transfers(transfers)

    def _record_transfer_completion(self, transfers: Sequence[SparseKVPageTransfer], stream: Any = None) -> None:
        """Acknowledge `transfers` when all that is queued so far on `stream` (the copy stream) is done. Only the
        writer acknowledges."""
        if not self.is_host_writer or not transfers:
            return
        where = self.dma_stream if stream is None else stream
        event = event_for(where)
        event.record(where)
        ids = tuple(transfer.transfer_id for transfer in transfers)
        self._enqueued_transfer_ids.extend(ids)
        self._pending_transfer_events.append((event, ids))

    def _restore_pages(self, transfers: Sequence[SparseKVPageTransfer]) -> None:
        """Bring host pages to the device, every layer's, on the current stream of every rank. The forward behind
        may append rows to the page; those that were restored stay."""
        if not transfers:
            return
        rows = self.kernel_block_size
        for transfer in transfers:
            first = transfer.host_block_id * rows
            for handle, resident, host in zip(self.cache_handles, self.resident_caches, self.host_caches, strict=True):
                block = transfer.resident_block_ids[handle.runtime.resident_source_index]
                page = resident[block]
                page.copy_(host[first : first + rows].view(page.shape), non_blocking=True)
        self._record_transfer_completion(transfers, stream=self._current_stream())

    @mirror_action("take_completed_transfers")
    def take_completed_transfers(self) -> list[int]:
        """Ids of the transfers that ended since the last call, in the order of their steps. To be called at each
        step, also an idle one. Raises `CopyFailedError` when a copy failed."""
        done: list[int] = []
        while self._pending_transfer_events and self._pending_transfer_events[0][0].query():
            done.extend(self._pending_transfer_events.popleft()[1])
        self._enqueued_transfer_ids = [each for each in self._enqueued_transfer_ids if each not in done]
        if self._trace is not None and done:
            self._trace.emit("take_completed_transfers", {}, {"taken": list(done)})
        return done
