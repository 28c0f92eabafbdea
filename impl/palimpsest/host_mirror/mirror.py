"""The host mirror as a runner drives it: construct it, initialize it, then step after step.

    mirror.start_step(metadata, request_ids)
    mirror.begin_forward(batch)
    for each layer:  mirror.write(layer, rows); mirror.select(layer, positions) on a leader; mirror.gather(layer)
    mirror.finish_forward(accepted)
    mirror.begin_draft(batch); the draft layers likewise; mirror.finish_draft()
    mirror.take_completed_transfers()

A step without a forward is `start_step` and `take_completed_transfers`. One thread drives a mirror.
"""

from __future__ import annotations

import numpy as np
import torch

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror.actions import mirror_action
from palimpsest.host_mirror.batch import HostMirrorConfig, MirrorBatch
from palimpsest.host_mirror.hot_rows import PageTables
from palimpsest.host_mirror.ranks import OneRank, RankGroup
from palimpsest.host_mirror.rows import IntArray
from palimpsest.host_mirror.setup import build_worker
from palimpsest.host_mirror.tracing import RankTrace, header, selected, selected_slots
from palimpsest.host_mirror.types import MirrorStats, StepMetadata
from palimpsest.host_mirror.worker import HostMirrorWorker
from palimpsest.sync import STANDARD, Sync
from palimpsest.trace import Sink


class HostMirror:
    """Keeps every accepted KV row of `config.layers` in a host pool, and brings rows back that attention selects.

    `ranks`: the processes of this node that share the pool; rank 0 writes it. Memory is taken by `initialize` and
    given back by `shutdown`, which must be called. `trace`: where its events go; ranks of one process can share a sink.
    """

    def __init__(
        self,
        config: HostMirrorConfig,
        *,
        ranks: RankGroup | None = None,
        sync: Sync = STANDARD,
        trace: Sink | None = None,
    ) -> None:
        self.config, self._sync, self._sink = config, sync, trace
        self.ranks: RankGroup = OneRank() if ranks is None else ranks
        self.pages = PageTables(config.max_requests, config.max_pages, config.num_sources)
        self._worker: HostMirrorWorker | None = None
        self._batch: MirrorBatch | None = None

    def initialize(self) -> None:
        """Allocate pages, hot rows and the host pool; start the copy stream. Every rank calls it."""
        if self._worker is not None:
            raise BadMirrorInputError("the mirror is initialized already")
        trace = None
        if self._sink is not None:
            trace = RankTrace(self._sink, self.ranks.rank, self._sync.lock())
            self._sink.begin(header(self.config, self.ranks.size))
        self._worker = build_worker(self.config, self.ranks, self._sync, trace)

    @property
    def worker(self) -> HostMirrorWorker:
        """The worker, once the mirror is initialized and until it is shut down."""
        if self._worker is None:
            raise BadMirrorInputError("the mirror is not initialized, or it was shut down")
        return self._worker

    @property
    def resident(self) -> list[torch.Tensor]:
        """The device's pages of each layer, [blocks, rows, width]."""
        return list(self.worker.resident_caches)

    @property
    def host(self) -> list[torch.Tensor]:
        """The host rows of each layer, [slots, width]."""
        return list(self.worker.host_caches)

    # ------------------------------------------------------------ a step

    def start_step(self, metadata: StepMetadata, request_ids: list[str] | None = None) -> None:
        """Begin a step, also an idle one: host block copies, restores, early transfers, and where pages lie now."""
        for updates in metadata.residency_updates.values():
            for update in updates:
                self.pages.set_resident(update.state, update.page, update.resident_block_ids)
        self.worker.start_step(metadata, request_ids)

    def begin_forward(self, batch: MirrorBatch) -> None:
        """The target model is about to write and read `batch`."""
        batch.check(self.config)
        self.worker.set_request_state_indices(self._sent(batch.states.astype(np.int32)))
        self._bind(batch, draft=False)

    def begin_draft(self, batch: MirrorBatch) -> None:
        """The draft model is about to write `batch`: the rows that were accepted."""
        batch.check(self.config)
        self._bind(batch, draft=True)

    def _bind(self, batch: MirrorBatch, *, draft: bool) -> None:
        self._batch = batch
        # read on the host alone: from the device they would have to wait for the forward
        host_slots, states = torch.from_numpy(batch.host_slots), torch.from_numpy(batch.row_states)
        slots = [self._sent(line) for line in batch.resident_slots]
        for spec, handle in zip(self.config.layers, self.worker.cache_handles, strict=True):
            if spec.draft != draft:
                continue
            handle.slot_mapping = slots[spec.source]
            handle.mirror_slot_mapping, handle.req_id_per_token = host_slots, states
            handle.num_actual_tokens = batch.host_slots.size
            handle.decode_batch = batch.deferred
            handle.host_mirror_required = self.config.eager or not batch.deferred

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        """The array on the mirror's device, in the order of its stream and without a wait for what runs there."""
        on_host, device = torch.from_numpy(array), self.config.torch_device
        return on_host if device.type == "cpu" else on_host.pin_memory().to(device, non_blocking=True)

    @mirror_action("write")
    def write(self, layer: int, rows: torch.Tensor) -> None:
        """The layer's rows of the batch, [rows, width]: into their resident pages, and on to the host unless the
        batch is deferred."""
        worker = self.worker
        handle = worker.cache_handles[layer]
        pages = worker.resident_caches[layer].flatten(0, 1)
        with worker._section:
            pages[handle.slot_mapping] = rows
            handle.finish_kv_update()
            if worker._trace is not None:
                tags = (
                    worker._trace.tags(self.config.layers[layer].name, pages[handle.slot_mapping])
                    if worker.on_host
                    else None
                )
                args = {
                    "layer": layer, "deferred": handle.decode_batch, "host": handle.mirror_slot_mapping.tolist(),
                    "states": handle.req_id_per_token.tolist(),
                    "device": handle.slot_mapping.tolist(),
                }  # fmt: skip
                post = {
                    "tags": tags, "reported": sorted(worker._per_layer_mirrored), "handed": worker._take_handed(),
                }  # fmt: skip
                worker._trace.emit("write", args, post)

    @mirror_action("select")
    def select(self, layer: int, positions: IntArray) -> None:
        """A leader: the `positions` [rows, top_k] that each row of the batch attends to; -1 for none."""
        if self._batch is None:
            raise BadMirrorInputError("positions are selected outside of a forward")
        runtime = self.worker.cache_handles[layer].runtime
        runtime.select(self.pages, self._batch.row_states, positions, self.config.block_rows)
        if self.worker._trace is not None:
            self.worker._trace.emit("select", *selected(runtime, layer))

    @mirror_action("gather")
    def gather(self, layer: int) -> torch.Tensor:
        """The rows that the layer's leader selected, [rows, top_k, width], wherever they lie."""
        worker = self.worker
        runtime = worker.cache_handles[layer].runtime
        rows: torch.Tensor = runtime.gather(self.pages)
        if worker._trace is not None:
            places, slots = selected_slots(runtime)
            hot = runtime.hot.flatten(0, 1)[torch.from_numpy(places)] if worker.on_host else rows[:0]
            tags = worker._trace.tags(self.config.layers[layer].name, hot)
            worker._trace.emit("gather", {"layer": layer}, {"slots": slots, "tags": tags})
        return rows

    def finish_forward(self, accepted: IntArray | None = None) -> None:
        """The target model has written its rows. `accepted` (a mask over a deferred batch): rows that the sampler
        accepted; the others never reach the host."""
        if self._batch is not None and accepted is not None:
            self._stage(self._batch, accepted)
        self.worker.finish_forward()

    def _stage(self, batch: MirrorBatch, accepted: IntArray) -> None:
        if not (batch.deferred and self.config.refines):
            raise BadMirrorInputError("rows can be rejected in deferred batches of a mirror that expects drafts")
        layer = next(number for number, spec in enumerate(self.config.layers) if not spec.draft)
        handle = self.worker.cache_handles[layer]
        mask = self._sent(accepted.astype(bool))
        handle.slot_mapping = torch.where(mask, handle.slot_mapping, -1)
        self.worker._stage_row_mirror_mapping(accepted.size)

    def finish_draft(self) -> None:
        """The draft model has written its rows."""
        self.worker.finish_draft()

    def take_completed_transfers(self) -> list[int]:
        """Transfers that ended since the last call."""
        return self.worker.take_completed_transfers()

    def stats(self) -> MirrorStats | None:
        """What was counted, once a snapshot of it has landed."""
        return self.worker.get_kv_connector_stats()

    # ------------------------------------------------------------ outside of a forward

    @mirror_action("import_rows")
    def import_rows(self, layer: int, host_slots: IntArray, rows: torch.Tensor) -> None:
        """Rows that were computed elsewhere, [rows, width], straight into the host pool. Every rank calls it, and the
        writer copies once all are there and its own writes have landed; the next `start_step` shows them to all."""
        self.settle()
        self.ranks.barrier()
        if self.worker.is_host_writer:
            self.worker.host_caches[layer][torch.from_numpy(host_slots)] = rows
            if self.worker._trace is not None:
                tags = self.worker._trace.tags(self.config.layers[layer].name, rows)
                args = {"layer": layer, "slots": host_slots.tolist()}
                self.worker._trace.emit("import_rows", args, {"tags": tags})

    def set_request(self, state: int, host_blocks: list[int]) -> None:
        """A request came to `state`: its host blocks, no resident page, and no hot row of an earlier request."""
        self.pages.clear(state)
        self.pages.set_host(state, host_blocks)
        self.worker.forget_state(state)

    def settle(self) -> None:
        """Wait until every row and page queued so far is on the host."""
        self.worker.host_write_event.synchronize()

    def shutdown(self) -> None:
        """Wait for what runs, release the host pool, end the copy stream; idempotent. Needs no other rank."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()
