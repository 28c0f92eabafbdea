"""A device in slow motion: copies to a page land when the schedule says, long after the save has returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from palimpsest.prefix_cache.copies import LandedEvent
from palimpsest.prefix_cache.manager import PrefixCacheManager

from .scheduler import Scheduler

Rows = Mapping[str, torch.Tensor]


class _Landing:
    """A copy that was queued, in the shape of a device event."""

    def __init__(self, rows: Rows, page: Rows) -> None:
        self._rows = {key: value.clone() for key, value in rows.items()}
        self._page = page
        self.landed = False

    def query(self) -> bool:
        """Whether the rows are on the page."""
        return self.landed

    def land(self) -> None:
        """Do the copy."""
        for key, value in self._rows.items():
            self._page[key].copy_(value)
        self.landed = True


class SlowDevice:
    """Takes over the copies of a cache's immediate rows; they land on a thread of their own, in order."""

    def __init__(self, scheduler: Scheduler, cache: PrefixCacheManager) -> None:
        self._scheduler, self._cache = scheduler, cache
        self._queue: deque[_Landing] = deque()
        copies: Any = cache._copies
        copies.freeze_into, copies.settle = self._freeze_into, self._settle
        scheduler.spawn("device", self._run, daemon=True)

    @property
    def queued(self) -> int:
        """Copies that have not landed."""
        return len(self._queue)

    def _freeze_into(self, live: Rows, page: Rows) -> LandedEvent | None:
        if not live:
            return None
        landing = _Landing(live, page)
        self._queue.append(landing)
        return self._event(landing)

    def _event(self, landing: _Landing) -> LandedEvent:
        event: Any = landing
        return LandedEvent(event, self._cache.config.staging_claim_timeout_s, self._cache._sync)

    def _settle(self) -> None:
        for landing in list(self._queue):
            self._event(landing).synchronize()

    def _run(self) -> None:
        while True:
            self._scheduler.point("land", "rows on a page", lambda: bool(self._queue))
            self._queue[0].land()
            self._queue.popleft()
