"""A device whose copies to the staging pages land when the behavior says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from palimpsest.prefix_cache.copies import LandedEvent
from palimpsest.prefix_cache.manager import PrefixCacheManager

Rows = Mapping[str, torch.Tensor]


class Landing:
    """A copy that was queued, in the shape of a device event."""

    def __init__(self, page: int, slots: list[int], live: Rows, views: Rows) -> None:
        self.page, self.slots, self._views = page, slots, views
        self.rows = {key: value.clone() for key, value in live.items()}
        self.landed = False

    def query(self) -> bool:
        """Whether the rows are on the page."""
        return self.landed

    def land(self) -> None:
        """Do the copy."""
        for key, value in self.rows.items():
            self._views[key].copy_(value)
        self.landed = True


class Device:
    """Takes over the copies of a cache's immediate rows."""

    def __init__(self, cache: PrefixCacheManager) -> None:
        self._cache = cache
        self._queue: list[Landing] = []
        #: of each page, the copy that landed there last
        self._last: dict[int, Landing] = {}
        #: the slots of the step that is saved
        self.slots: list[int] = []
        copies: Any = cache._copies
        copies.freeze_into, copies.settle = self._freeze_into, self._settle

    def on_way(self, page: int) -> list[Landing]:
        """The copies to a page that have not landed, in order."""
        return [landing for landing in self._queue if landing.page == page]

    def layout(self, page: int) -> tuple[list[int], list[str]]:
        """The slots of the rows that lie on a page, in order, and their keys."""
        last = self._last.get(page)
        return (last.slots, list(last.rows)) if last is not None else ([], [])

    def land(self, page: int) -> None:
        """Let the first copy to a page land."""
        landing = self.on_way(page)[0]
        landing.land()
        self._queue.remove(landing)
        self._last[page] = landing

    def _freeze_into(self, live: Rows, views: Rows) -> LandedEvent | None:
        if not live:
            return None
        landing = Landing(self._page_of(views), list(self.slots), live, views)
        self._queue.append(landing)
        return self._event(landing)

    def _page_of(self, views: Rows) -> int:
        key, view = next(iter(views.items()))
        buffers = self._cache._controller.staging._buffers
        return next(n for n, page in enumerate(buffers, 1) if page[key].data_ptr() == view.data_ptr())

    def _event(self, landing: Landing) -> LandedEvent:
        event: Any = landing
        return LandedEvent(event, self._cache.config.staging_claim_timeout_s, self._cache._sync)

    def _settle(self) -> None:
        for landing in list(self._queue):
            self._event(landing).synchronize()
