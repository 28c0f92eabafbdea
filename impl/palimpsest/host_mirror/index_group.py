"""Groups of layers that share one sparse index: a leader selects the top-k positions, its followers reuse them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror.streams import HostEvent, new_stream


@dataclass
class SparseIndexGroup:
    """A leader and its followers."""

    #: where rows are fetched while the leader's stream computes
    side_stream: Any
    #: recorded by the leader once its selection is there
    logical_topk_ready: Any
    #: positions selected for each query row, [rows, top_k], -1 for none; one buffer for all groups
    logical_topk_indices: torch.Tensor
    num_layers: int = 0
    #: what the host mirror shares among these layers; made with the leader's cache handle
    hot_rows: Any = None


class SparseIndexGroupBuilder:
    """Puts layers into groups, in the order of the model. All groups have one side stream, made with the first."""

    def __init__(self, logical_topk_indices: torch.Tensor) -> None:
        self._indices = logical_topk_indices
        self._stream: Any = None
        self.current_group: SparseIndexGroup | None = None

    def register_layer(self, is_leader: bool) -> tuple[SparseIndexGroup, int]:
        """The group of the next layer and its number in it; a leader, number 0, begins a group.
        Raises `BadMirrorInputError` for a follower without a leader."""
        if is_leader:
            device = self._indices.device
            self._stream = self._stream or _create_side_stream(device)
            self.current_group = SparseIndexGroup(self._stream, _create_event(), self._indices)
        group = self.current_group
        if group is None:
            raise BadMirrorInputError("the first layer with a sparse index must be the leader of its group")
        group.num_layers += 1
        return group, group.num_layers - 1


def _create_side_stream(device: torch.device) -> Any:
    return new_stream(device)


def _create_event() -> Any:
    return torch.Event() if torch.cuda.is_available() else HostEvent()


SparseMLAIndexGroupBuilder = SparseIndexGroupBuilder
