"""Where threads meet without a lock: rows of the pool, of staging pages and of deferred clones.

Copies there are operations of the scheduler, those of the pool in two groups of rows, so that a gather can overlap a
write. Where the scenario is about faults, a copy can be made to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from palimpsest.prefix_cache.manager import PrefixCacheManager

from .finding import Finding
from .scheduler import Scheduler
from .threads import FAILS


class InjectedError(OSError):
    """A copy failed because the schedule said so."""


class SharedRows:
    """The declared points of one cache."""

    def __init__(self, scheduler: Scheduler, cache: PrefixCacheManager, error: type[BaseException]) -> None:
        self._scheduler, self._error = scheduler, error
        pool, copies, controller = cache._pool, cache._copies, cache._controller
        self._staging = controller.staging
        self._replace(pool, "write", self._write)
        self._replace(pool, "read_into", self._read)
        self._replace(copies, "freeze_into", self._whole("copy to", "a page"))
        self._replace(copies, "clone", self._whole("clone", "live rows"))
        self._replace(cache, "_install_keys", self._whole("install", "keys"))
        self._replace(cache._buffers, "clone", self._whole("copy out", "a page"))
        self._replace(controller, "fetch_host", self._whole("copy out", "staged rows"))
        self._replace(controller._copies, "to_host", self._whole("copy to host", "deferred rows"))

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        setattr(owner, name, make(getattr(owner, name)))

    def _touch(self, what: str, on: str) -> None:
        if self._scheduler.point(what, on, may_fail=True) == FAILS:
            raise self._error(f"injected: {what} {on}")

    def _check_held(self, rows: torch.Tensor) -> None:
        """Find a copy out of a staging page that nobody holds: the next step may be landing there."""
        for page, buffers in enumerate(self._staging._buffers):
            if not self._staging._busy[page] and any(_overlap(rows, buffer) for buffer in buffers.values()):
                says = f"rows are written to the pool out of page {page}, which nobody holds"
                self._scheduler.find(Finding("page", says, ("PageExclusive",)))

    def _see(self, rows: Any) -> None:
        """Let the calling thread remember what it has copied."""
        if isinstance(rows, torch.Tensor) and self._scheduler.current is not None:
            self._scheduler.current.seen.append(rows.numpy().copy())

    def _whole(self, what: str, on: str) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def copy(*args: Any) -> Any:
                self._touch(what, on)
                result = real(*args)
                self._see(result)
                return result

            return copy

        return make

    def _write(self, real: Any) -> Any:
        def write(key: str, slots: torch.Tensor, rows: torch.Tensor) -> None:
            for part in _groups(slots.numel()):
                self._touch("write", f"pool rows {slots[part].tolist()}")
                self._check_held(rows)
                real(key, slots[part], rows[part])

        return write

    def _read(self, real: Any) -> Any:
        def read(key: str, slots: np.ndarray, out: torch.Tensor) -> None:
            for part in _groups(slots.size):
                self._touch("read", f"pool rows {slots[part].tolist()}")
                real(key, slots[part], out[part])
                self._see(out[part])

        return read


def _overlap(rows: torch.Tensor, buffer: torch.Tensor) -> bool:
    return rows.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def _groups(count: int) -> Iterator[slice]:
    """Two groups of rows where there are two rows."""
    half = count // 2
    if half:
        yield slice(0, half)
    if count:
        yield slice(half, count)
