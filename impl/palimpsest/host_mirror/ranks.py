"""The local ranks that share one host pool: who writes, and a barrier that names who did not come."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from palimpsest.errors import RankLostError


class RankGroup(Protocol):
    """The tensor-parallel ranks of this node."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None: ...
    def from_writer(self, values: list[int]) -> list[int]: ...


class OneRank:
    """A process by itself."""

    rank, size = 0, 1

    def barrier(self) -> None:
        """Nobody to wait for."""

    def from_writer(self, values: list[int]) -> list[int]:
        """The values of rank 0."""
        return values


class LocalRanks:
    """The ranks of a `torch.distributed` process group, whose host side (gloo) carries the barriers.

    `barrier` raises `RankLostError` when not every rank came within `timeout_s`; on rank 0 the error names the
    ranks that did not. The group is of no use after that.
    """

    def __init__(self, timeout_s: float, group: Any = None) -> None:
        self._timeout_s = timeout_s
        bound = timedelta(seconds=timeout_s)
        self._group = group if group is not None else dist.new_group(backend="gloo", timeout=bound)
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._lost: RankLostError | None = None

    def barrier(self) -> None:
        """Wait until every rank is here."""
        bound = timedelta(seconds=self._timeout_s)
        self._together(lambda: dist.monitored_barrier(self._group, timeout=bound, wait_all_ranks=True))

    def from_writer(self, values: list[int]) -> list[int]:
        """The values of rank 0, on every rank."""
        shared: list[list[int]] = [values]
        first = dist.get_global_rank(self._group, 0)
        self._together(lambda: dist.broadcast_object_list(shared, src=first, group=self._group))
        return shared[0]

    def _together(self, meet: Callable[[], None]) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            meet()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            self._lost = RankLostError(
                f"rank {self.rank} of {self.size} waited for the others, and not every rank came within "
                f"{self._timeout_s:g} s: {reason}"
            )
            raise self._lost from error


_ALONE = OneRank()
_group: RankGroup = _ALONE


def get_tp_group() -> RankGroup:
    """The ranks that share a host pool with this process, as `set_tp_group` said; otherwise this one alone."""
    return _group


def get_tensor_model_parallel_rank() -> int:
    """This process's number among them."""
    return _group.rank


def set_tp_group(group: RankGroup | None) -> None:
    """Say which ranks share a host pool with this process; None: it is alone."""
    global _group  # noqa: PLW0603  # the process has one place among its ranks
    _group = _ALONE if group is None else group
