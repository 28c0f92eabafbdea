"""Staging pages: host landing buffers of one whole step each, kept busy by their holders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSet
from itertools import repeat
from time import perf_counter_ns as now_ns
from typing import TYPE_CHECKING, NamedTuple

import torch

from palimpsest.actions import action
from palimpsest.errors import ShutdownError, StagingTimeoutError
from palimpsest.memory import allocate_lasting
from palimpsest.prefix_cache.interface import KeyLayout, PrefixCacheConfig
from palimpsest.prefix_cache.slow_waits import SlowWaits
from palimpsest.prefix_cache.stats import Stats
from palimpsest.sync import STANDARD, Deadline, Sync
from palimpsest.trace import Sink

if TYPE_CHECKING:
    from palimpsest.prefix_cache.row_checks import RowGuard


class StagingBufferHolder(NamedTuple):
    """A step or a task whose presence keeps a staging page busy."""

    kind: str
    number: int

    @classmethod
    def for_step(cls, step_id: int) -> StagingBufferHolder:
        """The hold of a step, from its save until it is consumed."""
        return cls("step", step_id)

    @classmethod
    def for_task(cls, tid: int) -> StagingBufferHolder:
        """The hold of a task, until its rows are in the pool."""
        return cls("task", tid)

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class Holders(MutableSet[StagingBufferHolder]):
    """A set of holders, as the numbers of each kind: a step's tasks come and go as one range."""

    __slots__ = ("steps", "tasks")

    def __init__(self, steps: Iterable[int] = (), tasks: Iterable[int] = ()) -> None:
        self.steps, self.tasks = set(steps), set(tasks)

    def __contains__(self, holder: object) -> bool:
        return isinstance(holder, StagingBufferHolder) and holder.number in self._of(holder)

    def __iter__(self) -> Iterator[StagingBufferHolder]:
        yield from map(StagingBufferHolder.for_step, sorted(self.steps))
        yield from map(StagingBufferHolder.for_task, sorted(self.tasks))

    def __len__(self) -> int:
        return len(self.steps) + len(self.tasks)

    def told(self) -> list[tuple[str, int]]:
        """Kind and number of each, in order, for a trace event."""
        return _pairs("step", sorted(self.steps)) + _pairs("task", sorted(self.tasks))

    def add(self, holder: StagingBufferHolder) -> None:
        """Let `holder` be one of them."""
        self._of(holder).add(holder.number)

    def discard(self, holder: StagingBufferHolder) -> None:
        """Let `holder` be none of them."""
        self._of(holder).discard(holder.number)

    def _of(self, holder: StagingBufferHolder) -> set[int]:
        return self.steps if holder.kind == "step" else self.tasks


def _pairs(kind: str, numbers: Iterable[int]) -> list[tuple[str, int]]:
    return list(zip(repeat(kind), numbers, strict=False))


class StagingPool:
    """`staging_depth` pages of `staging_capacity_tokens` rows per immediate key.

    A page is claimed by a step when it has no holder and is free again when its last holder leaves.
    """

    def __init__(
        self,
        config: PrefixCacheConfig,
        *,
        pinned: bool = False,
        sync: Sync = STANDARD,
        trace: Sink | None = None,
        stats: Stats | None = None,
        slow: SlowWaits | None = None,
    ) -> None:
        self._capacity, self._timeout_s = config.staging_capacity_tokens, config.staging_claim_timeout_s
        self._pinned, self._sync, self._trace = pinned, sync, trace
        self._lock = sync.lock()
        self._freed = sync.condition(self._lock)
        #: the holders of each page; guarded by the page lock
        self._busy = [Holders() for _ in range(config.staging_depth)]
        #: guarded by the page lock
        self._closed = False
        #: a claimed page's buffers belong to its step; the dicts grow on the engine thread only
        self._buffers: list[dict[str, torch.Tensor]] = [{} for _ in range(config.staging_depth)]
        self._stats = stats or Stats()
        self._slow = slow or SlowWaits(0)
        #: fills the buffers of freed pages; None for nobody
        self.guard: RowGuard | None = None

    def add_key(self, key: str, layout: KeyLayout) -> None:
        """Give each page rows of `layout` for `key`."""
        for buffers in self._buffers:
            if key not in buffers:
                buffers[key] = allocate_lasting((self._capacity, *layout.row_shape), layout.dtype, pinned=self._pinned)

    def views(self, page: int, keys: Iterable[str], rows: int) -> dict[str, torch.Tensor]:
        """The first `rows` rows of each key on a page that the caller holds."""
        return {key: self._buffers[page][key][:rows] for key in keys}

    def claim(self, holder: StagingBufferHolder) -> int:
        """The number of a page that `holder` alone holds now. Waits for one within the bound.

        Raises `StagingTimeoutError` naming every page's holders, or `ShutdownError`.
        """
        self.claim_page_begin(holder)
        return self.claim_page_end(holder)

    @action("claim_page_begin")
    def claim_page_begin(self, holder: StagingBufferHolder) -> None:
        """Announce that `holder` waits for a page."""
        with self._lock:
            if self._trace is not None:
                self._trace.emit("claim_page_begin", {"holder": tuple(holder)}, {})

    @action("claim_page_end")
    def claim_page_end(self, holder: StagingBufferHolder) -> int:
        """Wait for a page without holders and take it."""
        with self._freed:
            page = self._free_page()
            if page is None:
                page = self._wait_for_page(Deadline(self._sync, self._timeout_s))
            self._busy[page].add(holder)
            if self._trace is not None:
                self._trace.emit(
                    "claim_page_end", {"holder": tuple(holder), "page": page}, {"holders": self._busy[page].told()}
                )
            return page

    def bind(self, page: int, tids: Iterable[int]) -> None:
        """Let tasks hold a page that the caller holds."""
        with self._lock:
            self._busy[page].tasks.update(tids)

    @action("release_page")
    def release_page(self, page: int, holders: Iterable[StagingBufferHolder] = (), *, tids: Iterable[int] = ()) -> None:
        """Let `holders`, and the tasks `tids`, leave `page`; who does not hold it is passed over. Wakes those who
        wait for a page."""
        with self._freed:
            busy = self._busy[page]
            busy.tasks.difference_update(tids)
            for holder in holders:
                busy.discard(holder)
            if not busy:
                if self.guard is not None:
                    self.guard.page_freed(page, self._buffers[page])
                self._freed.notify_all()
            if self._trace is not None:
                left = [*map(tuple, holders), *_pairs("task", tids)]
                self._trace.emit("release_page", {"page": page, "left": left}, {"holders": busy.told()})

    def close(self) -> None:
        """Wake those who wait for a page, with `ShutdownError`."""
        with self._freed:
            self._closed = True
            self._freed.notify_all()

    def page_bytes(self, layouts: Mapping[str, KeyLayout]) -> int:
        """Host bytes of one page with these keys."""
        return sum(self._capacity * layout.row_bytes for layout in layouts.values())

    def holders_of(self, page: int) -> list[StagingBufferHolder]:
        """The holders of a page, in order."""
        with self._lock:
            return list(self._busy[page])

    def told(self, page: int) -> list[tuple[str, int]]:
        """The holders of a page, for a trace event."""
        with self._lock:
            return self._busy[page].told()

    def holds(self) -> list[tuple[str, StagingBufferHolder]]:
        """Every hold of a page, in words and as a value."""
        with self._lock:
            return [
                (f"page {page} is held by {holder}", holder)
                for page, holders in enumerate(self._busy)
                for holder in holders
            ]

    def _held(self) -> list[str]:
        return [
            f"page {page} held by {', '.join(map(str, holders))}" for page, holders in enumerate(self._busy) if holders
        ]

    def _wait_for_page(self, deadline: Deadline) -> int:
        self._stats.page_waits += 1
        began = now_ns()
        page: int | None = None
        quiet_s = self._slow.after_s  # until the warning, which comes once; 0 for none
        while page is None:
            left = deadline.left()
            if left <= 0:
                raise StagingTimeoutError(self._explain(deadline.seconds))
            if 0 < quiet_s <= deadline.seconds - left:
                quiet_s = 0.0
                self._warn(deadline)
                page = self._free_page()
                continue
            self._freed.wait(min(left, quiet_s - (deadline.seconds - left)) if quiet_s else left)
            page = self._free_page()
        self._stats.page_wait_ns += now_ns() - began
        return page

    def _warn(self, deadline: Deadline) -> None:
        """Say who holds the pages; not under the page lock, since a log may be slow."""
        says = f"a save needs a staging page: {'; '.join(self._held())}"
        self._lock.release()
        try:
            self._slow.warn(says, deadline)
        finally:
            self._lock.acquire()

    def _free_page(self) -> int | None:
        if self._closed:
            raise ShutdownError("the cache was shut down while a save waited for a staging page")
        return next((page for page, holders in enumerate(self._busy) if not holders), None)

    def _explain(self, seconds: float) -> str:
        steps = sum(holder.kind == "step" for holders in self._busy for holder in holders)
        return (
            f"no staging page came free within {seconds:g} s: {steps} unconsumed step contexts "
            f"(each step must be consumed by materialize or discard_step); {'; '.join(self._held())}"
        )
