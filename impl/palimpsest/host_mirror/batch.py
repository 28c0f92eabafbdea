"""The configuration of a host mirror, and what a runner says of the rows of one forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror.rows import IntArray


@dataclass(frozen=True)
class LayerSpec:
    """A layer with KV rows. A leader selects positions for itself and the layers behind it, up to the next leader."""

    name: str
    row_width: int
    leader: bool = True
    #: page table that places its resident pages; layers of one source follow one another
    source: int = 0
    #: written by the draft model, after the target's forward
    draft: bool = False


@dataclass(frozen=True)
class HostMirrorConfig:
    """Sizes of a host mirror. All memory is taken when it is initialized."""

    layers: tuple[LayerSpec, ...]
    #: rows of a page
    block_rows: int
    num_host_blocks: int
    #: pages on the device, for each source
    num_resident_blocks: int
    max_requests: int
    #: pages of the longest request
    max_pages: int
    #: rows that one forward writes at most
    max_rows: int
    top_k: int
    #: hot rows of a request in each layer
    hot_rows: int
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"
    #: mirror the rows of decode batches as they are written; otherwise their pages are transferred when asked for
    eager: bool = True
    #: rows of a request that one step writes at most for drafts that may be rejected
    draft_tokens: int = 0
    timeout_s: float = 60.0
    #: tells the pools of engines on one node apart
    engine_id: str = "mirror"
    #: bytes registered at once
    max_chunk_bytes: int = 32 << 30

    def __post_init__(self) -> None:
        sizes = (self.block_rows, self.num_host_blocks, self.num_resident_blocks, self.max_requests, self.max_pages)
        if min(*sizes, self.max_rows, self.top_k) < 1 or not self.layers:
            raise BadMirrorInputError(f"every size of a host mirror is at least 1, and it has layers: {self}")
        if self.hot_rows < self.top_k * (1 + self.draft_tokens):
            raise BadMirrorInputError(
                f"hot_rows is {self.hot_rows}; {1 + self.draft_tokens} rows of a request select {self.top_k} each"
            )
        if not self.layers[0].leader or self.layers[0].draft:
            raise BadMirrorInputError("the first layer is a leader of the target model")

    @property
    def num_sources(self) -> int:
        """Page tables on the device."""
        return 1 + max(layer.source for layer in self.layers)

    @property
    def refines(self) -> bool:
        """Whether rows may be rejected after they were written."""
        return self.draft_tokens > 0

    @property
    def torch_device(self) -> torch.device:
        """Where the pages lie."""
        return torch.device(self.device)

    @property
    def num_host_slots(self) -> int:
        """Rows of each layer in the host pool."""
        return self.num_host_blocks * self.block_rows


@dataclass(frozen=True)
class MirrorBatch:
    """The rows of one forward, in the runner's order."""

    #: state of each request
    states: IntArray
    #: of each row: its request's state, its host slot, and its resident slot in each source [sources, rows]
    row_states: IntArray
    host_slots: IntArray
    resident_slots: IntArray
    #: rows may be rejected, or are few: they are mirrored after the forward and not layer by layer
    deferred: bool = False

    def check(self, config: HostMirrorConfig) -> None:
        """Raise `BadMirrorInputError` unless the batch fits `config`."""
        count = self.host_slots.size
        if self.row_states.shape != (count,) or self.resident_slots.shape != (config.num_sources, count):
            raise BadMirrorInputError(
                f"{count} host slots, states of shape {self.row_states.shape}, resident slots of "
                f"{self.resident_slots.shape} for {config.num_sources} sources"
            )
        if count > config.max_rows or self.states.size > config.max_requests:
            raise BadMirrorInputError(
                f"{count} rows of {self.states.size} requests in a forward; at most {config.max_rows} of "
                f"{config.max_requests}"
            )
        _check_range("host slots", self.host_slots, config.num_host_slots)
        _check_range("resident slots", self.resident_slots, config.num_resident_blocks * config.block_rows)
        _check_range("states", self.row_states, config.max_requests)


def _check_range(what: str, values: IntArray, limit: int) -> None:
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < limit:
        raise BadMirrorInputError(f"{what} from {values.min()} to {values.max()}; they are 0 to {limit - 1}")
