"""The state of a mirror's worker: each attribute, what it means, and the default of one that is set later.

The worker's methods lie in modules by concern (row mirrors, page transfers, host copies, metrics); this is the one
place where its attributes are. The environment (current stream, ranks, the batched copy) is reached by the hooks
at the end, which `worker.py` fills.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from palimpsest.host_mirror.descriptors import DescriptorBatch, Queryable
from palimpsest.host_mirror.rows import IntArray, RowSet
from palimpsest.host_mirror.streams import is_capturing
from palimpsest.host_mirror.tracing import RankTrace
from palimpsest.host_mirror.types import SparseKVPageTransfer


class SlotMappingStaging:
    """Where the slots that a phase wrote come to the host: copied on `stream`, there once `event` is done.

    `slots`: int64 host buffer (pinned where there is a device); the first `num_tokens` are this phase's, slots of
    source `source_index`.
    """

    def __init__(self, stream: Any, event: Any, slots: torch.Tensor) -> None:
        self.stream, self.event, self.slots = stream, event, slots
        self.num_tokens = 0
        self.source_index = 0


class WorkerState:
    """Attributes of a worker. A *phase* is a forward of the target model, or of the draft model behind it."""

    #: layers in the order of the model: names, handles, caches on the device and on the host
    cache_layer_names: Sequence[str] = ()
    cache_handles: Sequence[Any] = ()
    resident_caches: Sequence[torch.Tensor] = ()
    host_caches: Sequence[torch.Tensor] = ()
    #: runtimes of the layers that lead an index group
    leader_runtimes: Sequence[Any] = ()
    #: rows of a page; host blocks of the pool
    kernel_block_size = 1
    host_num_blocks = 0
    #: sorted host addresses between two registered chunks, which no copy may cross
    host_seams: IntArray | None = None
    #: hot buffers of all layers on the device
    hot_backing: Any = None
    #: the mapping shared by the local ranks; None for a private pool
    shared_host_region: Any = None
    pinned_host_pools: Sequence[torch.Tensor] = ()
    #: this rank writes the host pool
    is_host_writer = True
    #: the caches lie on the host: host streams, plain copies
    on_host = False
    #: copies of rows and pages to the host run here
    dma_stream: Any = None

    #: two events for the host writes of alternate steps: one of them is being waited for by the next step, on every
    #: rank, while the other one is recorded
    host_write_events: tuple[Any, Any] = (None, None)
    host_write_event: Any = None
    _next_host_write_event = 0
    #: recorded when the layers of a phase have written their rows
    _forward_ready_event: Any = None
    _layer_ready_events: Sequence[Any] = ()
    #: this step handed a copy to the copy stream
    _dma_submitted = False
    #: descriptor batches whose copies may still run, oldest first, and those that are free
    _pending_dma_descriptors: deque[tuple[Queryable, DescriptorBatch]]
    _dma_free_descriptors: list[DescriptorBatch]

    #: the scheduler names rows that *may* be written; the staged slots say which were
    refines_row_mirrors = False
    _slot_mapping_staging: SlotMappingStaging | None = None
    _row_mirrors: RowSet = RowSet(())
    _row_mirror_num_rows = 0
    #: layers that are written by the draft model after the forward; whether their phase is still to come
    _draft_layers: Sequence[int] = ()
    _draft_mirror_pending = False
    #: layers that reported their rows in this phase, and those of them whose copies are queued
    _per_layer_mirrored: set[int]
    _submitted_mirror_layers: set[int]

    #: page transfers to be done when the step's rows are complete
    _post_forward_transfers: list[SparseKVPageTransfer]
    #: ids handed to the copy stream and not yet acknowledged; events with the ids that they complete, oldest first
    _enqueued_transfer_ids: list[int]
    _pending_transfer_events: deque[tuple[Any, tuple[int, ...]]]

    _completed_host_copy_dst_ids: list[int]
    #: host blocks with a new tenant, whose hot rows go when the batch's states are known
    _pending_invalid_block_ids: list[int]
    #: request state of each line of the batch, -1 behind them; int32, rewritten in place
    request_state_indices: torch.Tensor

    #: where events go, or None; what an action holds that queues on the copy stream, while there is a trace
    _trace: RankTrace | None = None
    _section: AbstractContextManager[Any] = nullcontext()
    #: rows handed on since the last event that told of them, where there is a trace
    _handed: Sequence[dict[str, Any]] = ()

    _metrics_calls = 0
    _metrics_event: Any = None
    _metrics_pending = False
    _initialized = False

    def __init__(self) -> None:
        self._pending_dma_descriptors, self._dma_free_descriptors = deque(), []
        self._per_layer_mirrored, self._submitted_mirror_layers = set(), set()
        self._post_forward_transfers, self._enqueued_transfer_ids = [], []
        self._pending_transfer_events = deque()
        self._completed_host_copy_dst_ids, self._pending_invalid_block_ids = [], []

    def _writes_host(self) -> bool:
        """Whether this step has rows for the host, and this rank writes them."""
        return self.is_host_writer and self._row_mirror_num_rows > 0

    def _take_handed(self) -> list[dict[str, Any]]:
        """For a trace: the rows handed to the copy stream since the last call."""
        handed, self._handed = list(self._handed), ()
        return handed

    # ------------------------------------------------------------ hooks

    @abstractmethod
    def _current_stream(self) -> Any:
        """The stream that the calling thread queues on."""

    @abstractmethod
    def _swap(self, src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor) -> None:
        """Copy `sizes` bytes from each address of `src` to that of `dst`; three int64 tensors on the host."""

    def _is_capturing(self) -> bool:
        return is_capturing()
