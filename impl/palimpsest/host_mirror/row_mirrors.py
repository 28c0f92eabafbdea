"""Mirroring the rows that a step writes: layer by layer behind a prefill, all layers at once behind the rest.

A phase mirrors each of its layers exactly once. A layer that runs from Python reports its rows (`finish_kv_update`);
layers of one source that follow one another are handed on together, `LAYERS_TOGETHER` at most and fewer towards the
end, so that copies run while later layers compute. What did not report by the end of the phase, since a full graph
replayed it or its rows could still be rejected, is handed on then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.errors import IncompleteMirrorError
from palimpsest.host_mirror.dma import DmaMixin
from palimpsest.host_mirror.rows import RowSet, select_written_row_mirrors
from palimpsest.host_mirror.streams import run_on
from palimpsest.host_mirror.types import SparseKVRowMirror

#: many enough that handing on costs the caller little
LAYERS_TOGETHER = 4


class RowMirrorMixin(DmaMixin):
    """Row mirrors of a worker."""

    def _set_row_mirrors(self, mirrors: Sequence[SparseKVRowMirror]) -> None:
        """The rows that this step mirrors."""
        self._row_mirrors = RowSet(mirrors)
        self._row_mirror_num_rows = self._row_mirrors.num_rows

    def _stage_row_mirror_mapping(self, num_tokens: int) -> None:
        """Bring the slots of the `num_tokens` rows that a reference layer just wrote to the host, behind those that
        were staged before in this phase (context and query rows may be written apart)."""
        staging = self._slot_mapping_staging
        if staging is None or not (self.refines_row_mirrors and self._writes_host()):
            return
        handle = self.cache_handles[self._reference_layer()]
        start, stop = staging.num_tokens, staging.num_tokens + num_tokens
        slots, written = staging.slots[start:stop], handle.slot_mapping[:num_tokens]
        staging.stream.wait_stream(self._current_stream())
        run_on(staging.stream, lambda: slots.copy_(written, non_blocking=True))
        staging.event.record(staging.stream)
        staging.num_tokens = stop
        staging.source_index = handle.runtime.resident_source_index

    def _reference_layer(self) -> int:
        """The layer whose slots stand for the phase's: the first that is written in it."""
        drafts = set(self._draft_layers)
        layers = range(len(self.cache_layer_names))
        return next(layer for layer in layers if (layer in drafts) == self._draft_mirror_pending)

    def _refine_row_mirrors(self) -> None:
        """Narrow the step's row mirrors to the rows whose staged slots say that they were written."""
        staging = self._slot_mapping_staging
        if staging is None or not staging.num_tokens:
            return
        staging.event.synchronize()
        slots = staging.slots[: staging.num_tokens].numpy()
        staging.num_tokens = 0
        self._set_row_mirrors(select_written_row_mirrors(self._row_mirrors.mirrors, slots, staging.source_index))

    # ------------------------------------------------------------ layer by layer

    def _enqueue_layer_mirror(self, layer: int) -> None:
        """A layer has written its rows. Hands on its source's layers when it is the last of them, or enough wait."""
        if not (self._writes_host() and self._is_active(layer)) or layer in self._per_layer_mirrored:
            return
        self._per_layer_mirrored.add(layer)
        source = self.cache_handles[layer].runtime.resident_source_index
        last = layer + 1 == len(self.cache_handles)
        if last or self._enough_wait(layer) or self.cache_handles[layer + 1].runtime.resident_source_index != source:
            ready = self._layer_ready_events[layer]
            ready.record()
            self._submit_reported(ready)

    def _enough_wait(self, layer: int) -> bool:
        """Whether the layers that wait are handed on. In a deep stack at most half as many go together as compute
        behind them, so that at the end of the forward the last layer's rows alone are still to be copied."""
        waiting = len(self._per_layer_mirrored) - len(self._submitted_mirror_layers)
        deep = len(self._submitted_mirror_layers) >= LAYERS_TOGETHER
        left = len(self.cache_handles) - 1 - layer
        return waiting >= (min(LAYERS_TOGETHER, max(1, left // 2)) if deep else LAYERS_TOGETHER)

    def _is_active(self, layer: int) -> bool:
        handle = self.cache_handles[layer]
        if handle.num_actual_tokens <= 0 or not handle.host_mirror_required:
            return False
        return self._is_of_phase(layer)

    def _is_of_phase(self, layer: int) -> bool:
        """Whether the layer is written in this phase: by the target model, or by the draft model."""
        return (layer in self._draft_layers) == self._draft_mirror_pending

    def _submit_reported(self, ready_event: Any) -> None:
        """Hand on the layers that reported and are not handed on yet."""
        layers = tuple(sorted(self._per_layer_mirrored - self._submitted_mirror_layers))
        if layers:
            self._enqueue_row_dma(layers, ready_event=ready_event)
            self._submitted_mirror_layers.update(layers)

    # ------------------------------------------------------------ at the end of a phase

    def _enqueue_host_mirror(self, ready_event: Any = None) -> None:
        """Hand on what the phase has not handed on yet, and forget hot copies of the rows that it wrote.

        Raises `IncompleteMirrorError` when some layers reported their rows and others of the phase did not.
        """
        active = [layer for layer in range(len(self.cache_handles)) if self._is_written(layer)]
        for layer in active:
            self._invalidate_written(self.cache_handles[layer])
        active = [layer for layer in active if self._is_active(layer)]
        if not self._writes_host() or not active:
            return
        if not self._per_layer_mirrored:
            self._enqueue_row_dma(tuple(active), ready_event=ready_event)
            return
        missed = [layer for layer in active if layer not in self._per_layer_mirrored]
        if missed:
            raise IncompleteMirrorError(
                f"the step did not mirror every active layer: layers {missed} of {active} wrote rows and did not report"
            )
        self._submit_reported(ready_event)

    def _is_written(self, layer: int) -> bool:
        return bool(self.cache_handles[layer].num_actual_tokens > 0)

    @staticmethod
    def _invalidate_written(handle: Any) -> None:
        if handle.runtime.is_group_leader:
            count = handle.num_actual_tokens
            slots, states = handle.mirror_slot_mapping[:count], handle.req_id_per_token[:count]
            handle.runtime.invalidate_written_slots(slots, states)

    def _finish_mirror_phase(self, ready_event: Any) -> None:
        """Mirror what is left of the phase, and be ready for the next."""
        if self.refines_row_mirrors and not self._per_layer_mirrored:
            self._refine_row_mirrors()
        self._enqueue_host_mirror(ready_event)
        self._per_layer_mirrored.clear()
        self._submitted_mirror_layers.clear()
