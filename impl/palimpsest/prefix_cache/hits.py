"""Hits: planning reads on the slot table, preserving their rows, and fetching them.

A read is decided when it is planned. A fetch takes no lock while it copies: it may overlap a pool write,
and finds out afterwards, by the versions, which of its rows must come from the preserved copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from time import perf_counter_ns as now_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.errors import AbsentRowsError, PrefixCacheError, StaleReadError
from palimpsest.prefix_cache import events
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.controller import PrefixCacheController
from palimpsest.prefix_cache.interface import HIDDEN_KEY, WriteSchedule
from palimpsest.prefix_cache.reads import PendingRead, PendingReads
from palimpsest.prefix_cache.slots import ABSENT, COMMITTED, IN_TRANSIT, NO_TASK, SlotTable
from palimpsest.prefix_cache.stats import Stats
from palimpsest.sync import LockLike
from palimpsest.trace import Sink

if TYPE_CHECKING:
    from palimpsest.prefix_cache.row_checks import RowGuard

IntArray = np.ndarray


class Aside(NamedTuple):
    """Rows copied for a read before a claim overwrites them, and their positions in it."""

    read: PendingRead
    rows: IntArray
    values: torch.Tensor


class HitReader:
    """Plans, preserves and fetches reads. `lock` is the manager's state lock."""

    def __init__(
        self,
        slots: SlotTable,
        pool: PrefixBlockPool,
        controller: PrefixCacheController,
        lock: LockLike,
        trace: Sink | None,
        stats: Stats,
    ) -> None:
        self._slots, self._pool, self._controller, self._lock, self._trace = (
            slots,
            pool,
            controller,
            lock,
            trace,
        )
        self._stats = stats
        self.guard: RowGuard | None = None
        self.pending = PendingReads(slots.num_slots)

    # The caller of the next four holds the state lock.

    def plan(self, slots: IntArray, key: str, req_id: str) -> PendingRead:
        """A read of `key` at `slots` as they are now, pending until it is fetched or dropped."""
        table = self._slots.get_slot_status(key)
        status = table.status[slots]
        read = PendingRead(req_id, key, slots, table.version[slots])
        try:
            if np.count_nonzero(status == COMMITTED) < status.size:
                self._plan_sources(read, status, table.writer[slots])
            if self.guard is not None:
                self.guard.planned(read)
        except Exception as error:  # reported by the fetch: a step must not fail half published
            read.error = PrefixCacheError(f"request {req_id!r}: no plan to read key {key!r}: {error}")
        self.pending.add(read)
        return read

    def _plan_sources(self, read: PendingRead, status: np.ndarray, writers: IntArray) -> None:
        from_pool = status == COMMITTED
        writers = np.where(status == IN_TRANSIT, writers, NO_TASK)
        for tid in np.unique(writers[writers != NO_TASK]).tolist():
            task = self._controller.get_task(tid)
            if task is None:
                read.error = PrefixCacheError(
                    f"request {read.req_id!r}: rows of key {read.key!r} are in transit in task {tid}, which is gone"
                )
            elif task.schedule is WriteSchedule.JOIN_NEXT_STEP:
                read.join_tids.append(tid)
                from_pool |= writers == tid
            else:
                read.staged_list.append((task.frozen(), np.flatnonzero(writers == tid)))
        if not from_pool.all():
            read.from_pool = from_pool
        absent = status == ABSENT
        if absent.any():
            read.absent = absent
            if read.key == HIDDEN_KEY:
                read.error = _absent_error(read, absent)

    def copy_aside(self, key: str, slots: IntArray, spared: Collection[int] = ()) -> list[Aside]:
        """Copies of the committed rows at `slots` that pending reads of `key` still need, except for the
        reads `spared`; they are no read's yet."""
        copies = []
        for read in self.pending.needing(key, slots):
            rows = self._rows_to_preserve(read, slots)
            if rows.size and read.rid not in spared:
                copies.append(Aside(read, rows, self._pool.rows(key, torch.from_numpy(read.slots[rows]))))
        return copies

    def preserve(self, copies: Collection[Aside]) -> list[tuple[int, IntArray]]:
        """Give copies to their reads; gives the read and the positions of its rows."""
        for read, rows, values in copies:
            read.preserve(rows, values)
            self._stats.rows_preserved += int(rows.size)
        return [(read.rid, rows) for read, rows, _ in copies]

    def _rows_to_preserve(self, read: PendingRead, slots: IntArray) -> IntArray:
        table = self._slots.get_slot_status(read.key)
        need = np.isin(read.slots, slots) & (table.version[read.slots] == read.versions)
        if read.from_pool is not None:
            need &= read.from_pool
        return np.flatnonzero(read.unpreserved(need))

    def fetch(self, read: PendingRead, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows of `read`, in `out` where given; absent rows are zeros. The read is over afterwards.

        Raises what the plan found wrong, `AbsentRowsError` for absent hidden states, `WriteFailedError` or
        `WaitTimeoutError` when its tasks do not finish, `StaleReadError` when rows were lost.
        """
        try:
            self.begin_fetch(read)
            if read.join_tids:
                self._controller.join(read.join_tids)
            if out is None:
                layout = self._pool.layout(read.key)
                out = torch.empty((read.slots.size, *layout.row_shape), dtype=layout.dtype)
            began = now_ns()
            self._gather(read, out)
            read.gather_ns = now_ns() - began
            changed = self.end_fetch(read, out)
        except BaseException:
            self.drop_read([read])
            raise
        if changed is not None:
            read.copy_preserved(out, changed)
        if self.guard is not None:
            self.guard.fetched(read, out)
        return out

    def _gather(self, read: PendingRead, out: torch.Tensor) -> None:
        if read.absent is not None:
            out[torch.from_numpy(np.flatnonzero(read.absent))] = 0
        if not read.all_preserved():
            self._gather_pool(read, out)
        for task, rows in read.staged_list:
            out[torch.from_numpy(rows)] = self._controller.fetch_host(
                task, torch.from_numpy(read.slots[rows]), read.key
            )

    def _gather_pool(self, read: PendingRead, out: torch.Tensor) -> None:
        if read.from_pool is None:
            self._pool.read_into(read.key, read.slots, out)
        elif read.from_pool.any():
            rows = torch.from_numpy(np.flatnonzero(read.from_pool))
            out[rows] = self._pool.rows(read.key, torch.from_numpy(read.pool_slots))

    @action("begin_fetch")
    def begin_fetch(self, read: PendingRead) -> None:
        """Mark the read as being fetched. Raises what its plan found wrong."""
        with self._lock:
            if read not in self.pending:
                raise StaleReadError(f"the read of key {read.key!r} for request {read.req_id!r} is over")
            read.fetching = True
            if self._trace is not None:
                self._trace.emit("begin_fetch", {"read": read.rid}, {"fetching": True})
        if read.error is not None:
            raise read.error

    @action("end_fetch")
    def end_fetch(self, read: PendingRead, rows: torch.Tensor) -> np.ndarray | None:
        """Which rows must come from the preserved copies; None for none. The read is over.

        Raises `StaleReadError` when a row changed and has no preserved copy.
        """
        with self._lock:
            changed = self._changed(read)
            stale = None if changed is None else read.unpreserved(changed)
            if stale is not None and stale.any():
                self.ensure_current(read.slots[stale], read.key, read.req_id, read.versions[stale])
            if not self.pending.drop(read):
                raise StaleReadError(f"the read of key {read.key!r} for request {read.req_id!r} is over")
            self._stats.count_fetch(read.key, read.present_rows(), read.gather_ns)
            if self._trace is not None:
                self._trace.emit("end_fetch", *self._fetched(read, changed, rows))
            return changed

    def _changed(self, read: PendingRead) -> np.ndarray | None:
        table = self._slots.get_slot_status(read.key)
        changed = table.version[read.slots] != read.versions
        if read.from_pool is not None:
            changed &= read.from_pool
        if read.all_preserved():
            changed = read.preserved_mask()
        return changed if np.count_nonzero(changed) else None

    def _fetched(
        self, read: PendingRead, changed: np.ndarray | None, rows: torch.Tensor
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self._trace is not None
        tags = events.tags(self._trace, {read.key: rows}).get(read.key)
        preserved: list[int] = []
        if changed is not None and read.preserved_rows is not None:
            preserved = np.flatnonzero(changed).tolist()
            if tags is not None:
                tags[changed] = events.tags(self._trace, {read.key: read.preserved_rows})[read.key][changed]
        return {"read": read.rid}, {"preserved": preserved, "tags": tags, "pending": len(self.pending)}

    def ensure_current(self, slots: IntArray, key: str, req_id: str, versions: IntArray) -> None:
        """Raise `StaleReadError` when one of the rows was claimed since `versions` were taken."""
        now = self._slots.get_slot_status(key).version[slots]
        moved = slots[now != versions]
        if moved.size:
            self._stats.rows_rejected += int(moved.size)
            raise StaleReadError(
                f"request {req_id!r}: {moved.size} rows of key {key!r} were reassigned after the read was planned "
                f"(slots {moved[:8].tolist()}), and no copy was preserved"
            )

    @action("drop_read")
    def drop_read(self, reads: Iterable[PendingRead]) -> None:
        """Let go of reads that will not be fetched; those that are over are passed over."""
        with self._lock:
            dropped = self.drop_all(reads)
            if self._trace is not None and dropped:
                self._trace.emit("drop_read", {"reads": dropped}, {"pending": len(self.pending)})

    def drop_all(self, reads: Iterable[PendingRead]) -> list[int]:
        """As `drop_read`, for a caller that holds the state lock; gives the reads that were pending."""
        return [read.rid for read in reads if self.pending.drop(read)]


def _absent_error(read: PendingRead, absent: np.ndarray) -> AbsentRowsError:
    slots = read.slots[absent]
    return AbsentRowsError(
        f"request {read.req_id!r}: {slots.size} of {read.slots.size} hidden-state rows of its prefix hit are absent "
        f"(slots {slots[:8].tolist()}): nothing was saved there by the slot's present tenant"
    )
