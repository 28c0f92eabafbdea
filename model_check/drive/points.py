"""Where the behavior has steps of which the code logs no event: single rows read and written, drains that find
nothing, escalations of nobody, reads that are over already, copies that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from palimpsest.prefix_cache.manager import PrefixCacheManager

from ..explore.memory import InjectedError
from .follow import ENTERED, Follower
from .sizes import Sizes


class DataRows:
    """The points of one cache."""

    def __init__(self, follower: Follower, cache: PrefixCacheManager, sizes: Sizes) -> None:
        self._follower, self._sizes = follower, sizes
        pool, copies, controller = cache._pool, cache._copies, cache._controller
        _replace(pool, "write", self._write)
        _replace(pool, "read_into", self._read)
        _replace(cache, "_commit_drained_writes", self._entering)
        _replace(cache, "drain", self._drained)
        silent: list[tuple[Any, str]] = [
            (controller, "escalate"), (cache._hits, "drop_read"), (controller, "join_begin"),
        ]  # fmt: skip
        for owner, name in silent:
            _replace(owner, name, self._noting(name))
        copied: list[tuple[Any, str]] = [
            (copies, "clone"), (copies, "freeze_into"), (cache._buffers, "clone"),
            (controller._copies, "to_host"), (controller, "_copy_to_host"), (controller, "host_ready"),
        ]  # fmt: skip
        for owner, name in copied:
            _replace(owner, name, self._failing(name))

    def _touch(self, what: str, on: str) -> None:
        self._follower.scheduler.point(what, on)
        if self._follower.fails_here():
            raise InjectedError(f"injected: {what} {on}")

    def _write(self, real: Any) -> Any:
        def write(key: str, slots: torch.Tensor, rows: torch.Tensor) -> None:
            for at, slot in enumerate(slots.tolist()):
                self._touch("write", f"pool row {slot}")
                real(key, slots[at : at + 1], rows[at : at + 1])
                self._follower.happened("pool_row_written")
            self._touch("written", "pool rows")

        return write

    def _read(self, real: Any) -> Any:
        def read(key: str, slots: np.ndarray, out: torch.Tensor) -> None:
            for at, slot in enumerate(slots.tolist()):
                self._touch("read", f"pool row {slot}")
                real(key, slots[at : at + 1], out[at : at + 1])
                self._follower.gathered(slot, self._sizes.identity(out[at]))

        return read

    def _entering(self, real: Any) -> Any:
        """After a drain that found something, or nothing, the state lock is held: others may go on."""

        def enter() -> None:
            found = self._follower.drains
            real()
            if self._follower.drains == found:
                self._follower.happened("drain")
            self._follower.scheduler.point(ENTERED, "")

        return enter

    def _drained(self, real: Any) -> Any:
        """A shutdown drains by itself."""

        def drain() -> None:
            real()
            if self._follower.is_closing():
                self._follower.scheduler.point(ENTERED, "")

        return drain

    def _noting(self, name: str) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def act(*args: Any) -> Any:
                logged = self._follower.events_here()
                result = real(*args)
                if self._follower.events_here() == logged:
                    self._follower.happened(name)
                return result

            return act

        return make

    def _failing(self, name: str) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def copy(*args: Any) -> Any:
                self._touch("copy", name)
                return real(*args)

            return copy

        return make


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))
