"""The ends of a step's phases: what was written is mirrored, what waited for it is queued, the next is ordered."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.host_mirror.actions import mirror_action
from palimpsest.host_mirror.tracing import batch_of_phase, hot_slots, restored_rows, staged_slots, transfer_state
from palimpsest.host_mirror.transfers import TransferMixin
from palimpsest.host_mirror.types import SparseKVPageTransfer


class PhaseMixin(TransferMixin):
    """Phases of a worker."""

    def finish_forward(self) -> None:
        """The target model's layers have written their rows: mirror what is not mirrored yet, then the transfers
        that wait for it, unless draft layers are still to come."""
        drafts = bool(self._draft_layers) and self._row_mirror_num_rows > 0
        self._finish_target()
        self._order_next_forward()
        self._draft_mirror_pending = drafts
        if not drafts:
            self._end_step()

    def finish_draft(self) -> None:
        """The draft layers have written theirs. Without a draft phase in this step nothing happens."""
        if self._draft_mirror_pending:
            self._finish_drafts()
            self._order_next_forward()
            self._draft_mirror_pending = False
            self._end_step()

    @mirror_action("finish_target")
    def _finish_target(self) -> None:
        """The target's phase ends."""
        with self._section:
            batch = batch_of_phase(self) if self._trace is not None else {}
            staged = self._slot_mapping_staging.num_tokens if self._slot_mapping_staging is not None else 0
            self._finish_phase()
            if self._trace is not None:
                args = {**batch, "staged": staged_slots(self, staged)}
                self._trace.emit("finish_target", args, {"handed": self._take_handed(), "hot": hot_slots(self)})

    @mirror_action("finish_drafts")
    def _finish_drafts(self) -> None:
        """The draft's phase ends."""
        with self._section:
            batch = batch_of_phase(self) if self._trace is not None else {}
            self._finish_phase()
            if self._trace is not None:
                self._trace.emit("finish_drafts", batch, {"handed": self._take_handed(), "hot": hot_slots(self)})

    def _finish_phase(self) -> None:
        self._forward_ready_event.record()
        self._finish_mirror_phase(self._forward_ready_event)

    def _end_step(self) -> None:
        transfers = bool(self._post_forward_transfers)
        self._finish_step()
        if transfers:
            self._order_next_forward()

    @mirror_action("finish_step")
    def _finish_step(self) -> None:
        """The transfers that waited for the step's rows."""
        with self._section:
            transfers, self._post_forward_transfers = self._post_forward_transfers, []
            if transfers:
                self._submit_transfers(transfers)
            for handle in self.cache_handles:
                handle.num_actual_tokens = 0
            if self._trace is not None:
                self._trace.emit("finish_step", {}, transfer_state(self))

    def _order_next_forward(self) -> None:
        """What the caller's stream does next may overwrite rows that are being copied: it waits for the copies."""
        current = self._current_stream()
        waits = self._dma_submitted
        self._dma_submitted = False
        if waits:
            current.wait_event(self.host_write_event)
            self._compute_runs()
        else:
            self.host_write_event.record(current)

    @mirror_action("compute_runs")
    def _compute_runs(self, transfers: Sequence[SparseKVPageTransfer] = ()) -> None:
        """On the host: the caller has waited, and pages are restored."""
        if self._trace is not None and self.on_host:
            self._trace.emit("compute_runs", {}, {"restored": restored_rows(self, transfers)})
