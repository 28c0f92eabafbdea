"""Checks of the rows that are delivered: a checksum for production, a poison for debugging.

A guard is told of each step on the way of a row, by hooks that the cache calls where it has one (`row_checks` of the
configuration). It changes no decision of the protocol: it sees the same critical sections, and adds none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from palimpsest.errors import CorruptRowsError
from palimpsest.prefix_cache.checksums import POISON, digests, is_poisoned, mixed, poison
from palimpsest.prefix_cache.interface import PrefixCacheConfig, RowChecks
from palimpsest.prefix_cache.slots import COMMITTED
from palimpsest.prefix_cache.slow_waits import RateLimit, logger

if TYPE_CHECKING:
    from palimpsest.prefix_cache.block_pool import PrefixBlockPool
    from palimpsest.prefix_cache.copies import Copies, LandedEvent
    from palimpsest.prefix_cache.reads import PendingRead
    from palimpsest.prefix_cache.records import Rows
    from palimpsest.prefix_cache.slots import SlotTable
    from palimpsest.prefix_cache.stats import Stats
    from palimpsest.prefix_cache.steps import StepContext

#: checksums by key, where they were computed, on the host, and when they are there
Sums = tuple["Rows", "Rows", "LandedEvent | None"]


def make_guard(config: PrefixCacheConfig, copies: Copies, stats: Stats) -> RowGuard | None:
    """The guard that the configuration asks for; None where nothing is checked."""
    checks = config.row_checks
    if checks is RowChecks.OFF:
        return None
    if checks is RowChecks.POISON:
        return PoisonGuard(stats)
    return DigestGuard(config.num_slots, copies, stats, raises=checks is RowChecks.DIGEST)


class RowGuard:
    """The hooks; each does nothing here. A hook that finds a wrong row raises `CorruptRowsError`, or logs it."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def frozen(self, ctx: StepContext, rows: Rows) -> None:
        """The engine froze these live rows for a step."""

    def claimed(self, ctx: StepContext, slots: SlotTable, pool: PrefixBlockPool) -> None:
        """A step claimed its slots; both locks are held."""

    def planned(self, read: PendingRead) -> None:
        """A read was planned; the state lock is held."""

    def fetched(self, read: PendingRead, rows: torch.Tensor) -> None:
        """These are about to be delivered as the rows of a read."""

    def copied_out(self, ctx: StepContext, rows: Rows) -> None:
        """These are about to be delivered as a step's own rows."""

    def page_freed(self, page: int, buffers: Rows) -> None:
        """The last holder left a staging page; the page lock is held."""

    def forgotten(self, pool: PrefixBlockPool) -> None:
        """A new epoch began: no row of the pool counts any more; the state lock is held."""

    def _found(self, what: str, key: str, slots: np.ndarray) -> CorruptRowsError:
        self._stats.count_corrupt(int(slots.size))
        return CorruptRowsError(f"{what}: {slots.size} rows of key {key!r} are not the ones saved ({self._why}), slots "
                                f"{slots[:8].tolist()}")  # fmt: skip

    _why = ""


class DigestGuard(RowGuard):
    """Compares a checksum of content and identity with the one taken off the live buffers when the row was saved.

    The checksum of a (slot, key) stands in a table where the live buffers are, and is replaced when the slot is claimed
    (the version is mixed in). A read takes the checksums along that its plan found; so it does not matter which way
    its rows come, out of the pool, a preserved copy or a deferred clone.
    """

    _why = "checksum"

    def __init__(self, num_slots: int, copies: Copies, stats: Stats, *, raises: bool) -> None:
        super().__init__(stats)
        self._num_slots, self._copies, self._raises, self._limit = num_slots, copies, raises, RateLimit()
        #: key -> checksum by slot; the engine thread's own
        self._table: Rows = {}

    def frozen(self, ctx: StepContext, rows: Rows) -> None:
        sums = {key: digests(values) for key, values in rows.items()}
        for key, of_key in sums.items():  # here, since a claim must not fail
            if key not in self._table:
                self._table[key] = torch.zeros(self._num_slots, dtype=torch.int64, device=of_key.device)
        ctx.sums = (sums, *self._copies.to_host(sums))

    def claimed(self, ctx: StepContext, slots: SlotTable, pool: PrefixBlockPool) -> None:  # noqa: ARG002  a hook's
        assert ctx.sums is not None
        for key, sums in ctx.sums[0].items():
            versions = torch.from_numpy(slots.get_slot_status(key).version[ctx.rows.at])
            at = ctx.rows.slots.to(sums.device, non_blocking=True)
            self._table[key][at] = mixed(sums, versions.to(sums.device, non_blocking=True))

    def planned(self, read: PendingRead) -> None:
        table = self._table.get(read.key)
        if table is not None:
            at = torch.from_numpy(read.slots).to(table.device, non_blocking=True)
            sums, landed = self._copies.to_host({read.key: table[at]})
            read.sums = sums[read.key], landed

    def fetched(self, read: PendingRead, rows: torch.Tensor) -> None:
        if read.sums is None:
            return
        planned, landed = read.sums
        if landed is not None:
            landed.synchronize()
        wrong = (mixed(digests(rows), torch.from_numpy(read.versions)) != planned).numpy()
        if read.absent is not None:
            wrong &= ~read.absent
        if wrong.any():
            self._report(self._found(f"hit of request {read.req_id!r}", read.key, read.slots[wrong]))

    def copied_out(self, ctx: StepContext, rows: Rows) -> None:
        assert ctx.sums is not None
        _, saved, landed = ctx.sums
        if landed is not None:
            landed.synchronize()
        for key, values in rows.items():
            wrong = (digests(values) != saved[key]).numpy()
            if wrong.any():
                self._report(self._found(f"step {ctx.step_id}", key, ctx.rows.at[wrong]))

    def _report(self, error: CorruptRowsError) -> None:
        if self._raises:
            raise error
        if (left_out := self._limit.passes()) is not None:
            logger.error("prefix cache: delivered all the same: %s%s", error, left_out)


class PoisonGuard(RowGuard):
    """Fills freed pages and slots with a pattern; a delivered row of that pattern was read after it was freed."""

    _why = f"freed memory, filled with 0x{POISON:02x}"

    def __init__(self, stats: Stats) -> None:
        super().__init__(stats)
        #: page -> rows of the step that holds it
        self._used: dict[int, int] = {}

    def frozen(self, ctx: StepContext, rows: Rows) -> None:  # noqa: ARG002  a hook's
        self._used[ctx.d2h.staging_slot] = ctx.rows.shape.count

    def claimed(self, ctx: StepContext, slots: SlotTable, pool: PrefixBlockPool) -> None:
        at = ctx.rows.at
        for key in slots.keys:
            pool.fill(key, at[slots.get_slot_status(key).status[at] != COMMITTED], POISON)

    def fetched(self, read: PendingRead, rows: torch.Tensor) -> None:
        wrong = is_poisoned(rows)
        if wrong.any():
            raise self._found(f"hit of request {read.req_id!r}", read.key, read.slots[wrong])

    def copied_out(self, ctx: StepContext, rows: Rows) -> None:
        for key, values in rows.items():
            wrong = is_poisoned(values)
            if wrong.any():
                raise self._found(f"step {ctx.step_id}", key, ctx.rows.at[wrong])

    def page_freed(self, page: int, buffers: Rows) -> None:
        used = self._used.pop(page, None)  # the rows behind them were not written since they were filled
        for rows in list(buffers.values()):  # the engine may give a page a key meanwhile
            poison(rows[:used])

    def forgotten(self, pool: PrefixBlockPool) -> None:
        for key in list(pool.layouts):
            pool.fill(key, None, POISON)
