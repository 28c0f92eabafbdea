"""Counters of what a prefix cache did since it was made.

Plain integers that only grow. Each is written where its comment says and read without a lock: a reader sees a value
that was right a moment ago. Bytes are not counted but follow from rows and the keys' layouts.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.prefix_cache.records import PoolWrite
    from palimpsest.prefix_cache.steps import StepContext

#: rows by the keys that have them: one entry for all keys of a step, so that a step costs one addition
Rows = dict[tuple[str, ...], int]


def by_key(rows: Rows) -> dict[str, int]:
    """Rows by key. A copy is taken first, since the counts may grow meanwhile."""
    found: dict[str, int] = {}
    for keys, count in rows.copy().items():
        for key in keys:
            found[key] = found.get(key, 0) + count
    return found


@dataclass
class Stats:
    """Monotone counts; times in nanoseconds."""

    # under the state lock: published steps, what their requests asked for, and what they saved
    steps: int = 0
    tokens: int = 0
    hits: int = 0
    hit_tokens: int = 0
    query_tokens: int = 0
    hits_replanned: int = 0
    rows_saved: Rows = field(default_factory=dict)
    # under the state lock: reads
    rows_preserved: int = 0
    rows_served: Rows = field(default_factory=dict)
    rows_rejected: int = 0
    fetch_ns: int = 0
    # by the engine thread
    flushes: int = 0
    freeze_ns: int = 0
    # by the thread that writes
    rows_written: Rows = field(default_factory=dict)
    pool_ns: int = 0
    # under the task lock
    writes: int = 0
    writes_failed: int = 0
    joins_waited: int = 0
    join_ns: int = 0
    # under the page lock
    page_waits: int = 0
    page_wait_ns: int = 0
    # under the lock below, which nothing else takes: those who deliver
    rows_corrupt: int = 0
    rows_delivered: Rows = field(default_factory=dict)
    deliver_ns: int = 0
    _delivering: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def waits(self) -> int:
        """Waits for a page or for a write that took any time."""
        return self.joins_waited + self.page_waits

    def count_step(self, ctx: StepContext, replanned: int, query_tokens: int, deferred: Collection[str]) -> None:
        """Count a published step."""
        count, keys = ctx.rows.shape.count, (*ctx.d2h.views, *deferred)
        self.steps += 1
        self.tokens += count
        self.rows_saved[keys] = self.rows_saved.get(keys, 0) + count
        self.query_tokens += query_tokens
        if ctx.hits:
            self.hits += len(ctx.hits)
            self.hit_tokens += sum(tokens for tokens, _ in ctx.hits.values())
            self.hits_replanned += replanned

    def count_fetch(self, key: str, rows: int, nanoseconds: int) -> None:
        """Count a read that was served."""
        self.rows_served[key,] = self.rows_served.get((key,), 0) + rows
        self.fetch_ns += nanoseconds

    def count_pool_write(self, write: PoolWrite, nanoseconds: int) -> None:
        """Count a pool write."""
        for each in write.writes:
            self.rows_written[each.key,] = self.rows_written.get((each.key,), 0) + each.at.size
        self.pool_ns += nanoseconds

    def count_corrupt(self, rows: int) -> None:
        """Count rows that a row check found wrong."""
        with self._delivering:
            self.rows_corrupt += rows

    def count_delivery(self, ctx: StepContext, nanoseconds: int) -> None:
        """Count a step's own rows that were copied out to a caller."""
        count, keys = ctx.rows.shape.count, tuple(ctx.d2h.views)
        with self._delivering:
            self.rows_delivered[keys] = self.rows_delivered.get(keys, 0) + count
            self.deliver_ns += nanoseconds
