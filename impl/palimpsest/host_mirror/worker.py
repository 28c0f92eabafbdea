"""The worker of a host mirror: what one rank does around each forward.

    start_step -> set_request_state_indices -> forward (each layer: finish_kv_update) -> finish_forward
               [-> draft forward -> finish_draft] -> take_completed_transfers

The methods lie in the modules that this class inherits from; `state.py` has the attributes. What a step does to the
device is queued on two streams: the caller's, and the copy stream that carries rows and pages to the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from palimpsest.errors import IncompleteMirrorError
from palimpsest.host_mirror import ops
from palimpsest.host_mirror.actions import mirror_action
from palimpsest.host_mirror.metrics import METRICS_INTERVAL as _METRICS_INTERVAL
from palimpsest.host_mirror.metrics import MetricsMixin
from palimpsest.host_mirror.phases import PhaseMixin
from palimpsest.host_mirror.ranks import RankGroup, get_tensor_model_parallel_rank, get_tp_group
from palimpsest.host_mirror.rows import flatten_row_mirrors as _flatten_row_mirrors
from palimpsest.host_mirror.rows import select_written_row_mirrors as _select_written_row_mirrors
from palimpsest.host_mirror.runtime import release_pinned_state
from palimpsest.host_mirror.state import SlotMappingStaging as _SlotMappingStaging
from palimpsest.host_mirror.streams import CALLER, HostStream, current_stream
from palimpsest.host_mirror.tracing import host_tags, hot_slots, transfer_state
from palimpsest.host_mirror.types import StepMetadata
from palimpsest.kv_cache.copies import KVCacheBlockCopy, copy_kv_cache_blocks_inplace

__all__ = [
    "_METRICS_INTERVAL",
    "HiSparseConnectorWorker",
    "HostMirrorWorker",
    "_SlotMappingStaging",
    "_flatten_row_mirrors",
    "_select_written_row_mirrors",
]


class HostMirrorWorker(PhaseMixin, MetricsMixin):
    """One rank's side of the mirror. `HostMirror` makes and fills one."""

    #: the ranks that share the pool; None: the process's own group
    ranks: RankGroup | None = None

    # ------------------------------------------------------------ a step

    def start_step(self, metadata: StepMetadata, request_ids: Iterable[str] | None) -> None:
        """Begin a step: after the host writes of the last one, copy host blocks, restore pages and queue the
        transfers that need no forward. `request_ids`: the batch in the runner's order; None: the metadata's."""
        previous = self.host_write_event
        if self._draft_mirror_pending:
            raise IncompleteMirrorError("a step begins, and the draft layers of the last one were not finished")
        self._await_writes(previous)
        self._compute_runs()
        if self.shared_host_region is not None:
            self._meet(previous)
        self._forget_last_step()
        self._copy_host_blocks(metadata.host_block_copies, previous)
        self._start_transfers(metadata, request_ids)
        if metadata.command is not None and any(each.restore for each in metadata.command.transfers):
            self._compute_runs(metadata.command.transfers)

    def _forget_last_step(self) -> None:
        for handle in self.cache_handles:
            handle.num_actual_tokens = 0
        self._per_layer_mirrored.clear()
        self._submitted_mirror_layers.clear()
        self._dma_submitted = False
        if self._slot_mapping_staging is not None:
            self._slot_mapping_staging.num_tokens = 0

    @mirror_action("await_writes")
    def _await_writes(self, previous: Any) -> None:
        """What the forward stream is given from now on waits for the host writes of the last step."""
        waits = 1 - self._next_host_write_event
        if self.shared_host_region is None:
            self._turn_events()
        if self._trace is not None:
            self._trace.emit("await_writes", {}, {"waits": waits, "next": self._next_host_write_event})
        self._current_stream().wait_event(previous)

    def _turn_events(self) -> None:
        """From now on the step's host writes are recorded in the other event."""
        self.host_write_event = self.host_write_events[self._next_host_write_event]
        self._next_host_write_event = 1 - self._next_host_write_event

    @mirror_action("meet")
    def _meet(self, previous: Any) -> None:
        """Ranks that share a pool begin a step together: what the writer wrote is there for all, and no rank still
        reads rows that the writer may write over now."""
        previous.synchronize()
        self._barrier()
        self._turn_events()
        if self._trace is not None:
            self._trace.emit("meet", {}, {"next": self._next_host_write_event})

    @mirror_action("start_transfers")
    def _start_transfers(self, metadata: StepMetadata, request_ids: Iterable[str] | None) -> None:
        """The step's rows, restores, and transfers that need no forward. The step's event is recorded also where
        nothing follows: who waits for an idle step's event waits for the steps before it."""
        self._pending_invalid_block_ids.extend(metadata.source_block_ids)
        order = metadata.row_mirrors if request_ids is None else request_ids
        mirrors = _flatten_row_mirrors(metadata.row_mirrors, order) if metadata.row_mirrors_from_resident else ()
        self._set_row_mirrors(mirrors)
        transfers = metadata.command.transfers if metadata.command is not None else ()
        with self._section:
            self._restore_pages([each for each in transfers if each.restore])
            self.host_write_event.record(self._current_stream())
            self._submit_transfers([each for each in transfers if not each.restore and not each.after_forward])
            self._post_forward_transfers.extend(each for each in transfers if not each.restore and each.after_forward)
            if self._trace is not None:
                args = {
                    "given": list(metadata.source_block_ids),
                    "transfers": [each._asdict() for each in transfers],
                    "mirrors": [each._asdict() for each in mirrors],
                }
                self._trace.emit("start_transfers", args, transfer_state(self))

    def set_request_state_indices(self, indices: torch.Tensor) -> None:
        """The request state of each line of the batch. Hot rows of blocks that changed hands are forgotten now."""
        count = indices.numel()
        self.request_state_indices[:count].copy_(indices, non_blocking=True)
        self.request_state_indices[count:].fill_(-1)
        if self._pending_invalid_block_ids and not self._is_capturing():
            self.invalidate_blocks(self._pending_invalid_block_ids, self.request_state_indices[:count])
            self._pending_invalid_block_ids = []

    @mirror_action("invalidate_blocks")
    def invalidate_blocks(self, block_ids: Sequence[int], states: torch.Tensor) -> None:  # noqa: ARG002  # of the batch
        """Forget the hot rows of host blocks, in the states of the batch and in all others."""
        for runtime in self.leader_runtimes:
            runtime.index_group.table.forget_blocks(block_ids, self.kernel_block_size)
        if self._trace is not None:
            self._trace.emit("invalidate_blocks", {"blocks": list(block_ids)}, {"hot": hot_slots(self)})

    @mirror_action("forget_state")
    def forget_state(self, state: int) -> None:
        """Another request has the state: none of its hot rows are there."""
        for runtime in self.leader_runtimes:
            runtime.index_group.table.forget_state(state)
        if self._trace is not None:
            self._trace.emit("forget_state", {"state": state}, {"hot": hot_slots(self)})

    # ------------------------------------------------------------ copies of host blocks

    @mirror_action("copy_host_blocks")
    def _copy_host_blocks(self, copies: Sequence[KVCacheBlockCopy], previous_write: Any) -> None:
        """Copy host blocks once the host writes before are there: on the writer only, the other ranks wait."""
        if not copies:
            return
        writes = self.shared_host_region is None or self._rank() == 0
        if writes:
            if previous_write is not None:
                previous_write.synchronize()
            copy_kv_cache_blocks_inplace(self.host_caches, self.host_num_blocks, copies)
        else:
            self._barrier()
        if self._trace is not None:
            pairs = [[copy.source, copy.destination] for copy in copies]
            post = {"wrote": writes, "tags": host_tags(self, [copy.destination for copy in copies]) if writes else []}
            self._trace.emit("copy_host_blocks", {"copies": pairs}, post)
        if writes and self.shared_host_region is not None:
            self._barrier()
        self._completed_host_copy_dst_ids.extend(copy.destination for copy in copies)

    def take_completed_host_copies(self) -> list[int]:
        """Host blocks that became copies since the last call."""
        done, self._completed_host_copy_dst_ids = self._completed_host_copy_dst_ids, []
        return done

    # ------------------------------------------------------------ the end

    @mirror_action("shutdown")
    def shutdown(self) -> None:
        """Wait for what is queued, then release what was page-locked; idempotent."""
        if not self._initialized:
            return
        self._initialized = False
        try:
            self._settle()
            if self._trace is not None:
                self._trace.emit("shutdown", {}, {})
        finally:
            runtimes = [handle.runtime for handle in self.cache_handles]
            release_pinned_state(runtimes, self.pinned_host_pools, self.shared_host_region)
            self.pinned_host_pools, self.shared_host_region = [], None

    def _settle(self) -> None:
        """No copy may run while its memory is unregistered."""
        staging = self._slot_mapping_staging
        streams = [self.dma_stream, staging.stream if staging is not None else None]
        for stream in streams:
            if stream is not None:
                stream.synchronize()
        if self.hot_backing is not None and self.hot_backing.device.type == "cuda":
            torch.cuda.synchronize(self.hot_backing.device)  # restores and fetches read the pool as well
        for stream in streams:
            if isinstance(stream, HostStream):
                stream.close()

    # ------------------------------------------------------------ the environment

    def _current_stream(self) -> Any:
        return CALLER if self.on_host else current_stream()

    def _swap(self, src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor) -> None:
        (ops.copy_on_host if self.on_host else ops.swap_blocks_batch)(src, dst, sizes)

    def _rank(self) -> int:
        return get_tensor_model_parallel_rank() if self.ranks is None else self.ranks.rank

    def _barrier(self) -> None:
        (get_tp_group() if self.ranks is None else self.ranks).barrier()


HiSparseConnectorWorker = HostMirrorWorker
