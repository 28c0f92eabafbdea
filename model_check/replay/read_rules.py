"""The rules of reads: planned on the slot table, preserved when their slots are claimed, fetched or dropped."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .rules import Args, Rules
from .tables import (
    COMMITTED,
    FROM_POOL,
    IN_TRANSIT,
    NOTHING,
    STAGED,
    Begun,
    IntArray,
    KeyTable,
    Read,
    distinct,
)

#: where a row comes from by its slot's status, unless a deferred task still keeps it
SOURCE_OF = np.array([NOTHING, FROM_POOL, FROM_POOL], dtype=np.int8)


class Plan(NamedTuple):
    """What a read of some slots will find, for each key of a table."""

    versions: IntArray
    sources: np.ndarray
    #: the tasks to wait for
    joins: list[int]
    #: which rows come from the pool; None for all
    from_pool: np.ndarray | None


class ReadRules(Rules):
    """Actions on reads, and what begin and publish do with them."""

    # ---------------------------------------------------------------- planning

    def plan_all(self, logged: list[Args], expected: list[tuple[str, str]], begun: Begun) -> None:
        """Plan the reads of the expected (request, key) and compare each with the logged one."""
        if not logged and not expected:
            return
        self.same("reads", sorted(expected), sorted((entry["request"], entry["key"]) for entry in logged))
        plans: dict[tuple[KeyTable, str], Plan] = {}
        for entry in logged:
            rid, hit = entry["read"], begun.hits[entry["request"]]
            if rid <= self.s.last_read:
                self.reject("a read is planned once", "ReleasedOnce", f"read {rid} after {self.s.last_read}")
            self.s.last_read = rid
            self.same_rows("reads", hit, entry["slots"], hit)
            self.s.reads[rid] = self._read(entry, hit, plans)
            begun.reads[entry["request"], entry["key"]] = rid

    def _read(self, entry: Args, slots: IntArray, plans: dict[tuple[KeyTable, str], Plan]) -> Read:
        key = entry["key"]
        table = self.s.keys[key]
        plan = plans.get((table, entry["request"]))
        if plan is None:
            plan = plans[table, entry["request"]] = self._plan(table, slots)
        self.same_rows("reads", plan.versions, entry["versions"], slots)
        self.same_rows("reads", plan.sources, entry["sources"], slots)
        self.same("reads", plan.joins, sorted(entry["joins"]))
        tags = self.s.tags_at(key, slots)
        if tags is not None and plan.from_pool is not None:
            tags[plan.sources == NOTHING] = 0
        return Read(key, slots, plan.versions, plan.from_pool, plan.joins, tags)

    def _plan(self, table: KeyTable, slots: IntArray) -> Plan:
        versions, status = table.version[slots], table.status[slots]
        if np.count_nonzero(status == COMMITTED) == slots.size:
            return Plan(versions, SOURCE_OF.take(status), [], None)
        sources, joins = self._sources(table, slots, status)
        return Plan(versions, sources, joins, sources == FROM_POOL)

    def _sources(self, table: KeyTable, slots: IntArray, status: np.ndarray) -> tuple[IntArray, list[int]]:
        """Where each row comes from, and the tasks to wait for."""
        sources, joins = SOURCE_OF.take(status), []
        writers = table.writer[slots] * (status == IN_TRANSIT)
        for tid in distinct(writers):
            if not tid:
                continue
            if self.s.tasks[tid].deferred:
                sources[writers == tid] = STAGED
            else:
                joins.append(tid)
        return sources, joins

    # ---------------------------------------------------------------- preserving and dropping

    def preserve(self, slots: IntArray, spared: list[int], logged: list[Args]) -> None:
        """Copy aside the rows of pending reads that a claim of `slots` is about to overwrite."""
        spec: dict[int, list[int]] = {}
        others = {rid: read for rid, read in self.s.reads.items() if rid not in spared}
        touched = self.s.each_among([read.slots for read in others.values()], slots)
        for (rid, read), claimed in zip(others.items(), touched, strict=True):
            if (rows := self._rows_to_preserve(read, claimed)) is not None:
                spec[rid] = rows.tolist()
        if spec or logged:
            self.same("preserved", spec, {entry["read"]: entry["rows"].tolist() for entry in logged})
            self.same("preserved", len(spec), len(logged))

    def _rows_to_preserve(self, read: Read, claimed: np.ndarray) -> IntArray | None:
        if not np.count_nonzero(claimed):
            return None
        need = read.needs(claimed)
        table = self.s.keys[read.key]
        need = need & (table.version[read.slots] == read.versions)
        if read.preserved is not None:
            need &= ~read.preserved
        rows: IntArray = need.nonzero()[0]
        if not rows.size:
            return None
        if not (table.pool[read.slots[rows]] == read.versions[rows]).all():
            self.reject("what is preserved is intact", "ReadIntegrity", read.key, read.slots[rows])
        read.preserved = need if read.preserved is None else read.preserved | need
        return rows

    def drop(self, spec: list[int], logged: list[int]) -> None:
        """Reads are over."""
        if spec or logged:
            self.same("dropped", sorted(spec), sorted(logged))
        for rid in spec:
            del self.s.reads[rid]

    # ---------------------------------------------------------------- fetching

    def begin_fetch(self, args: Args, post: Args, thread: str) -> None:
        s, rid = self.s, args["read"]
        if (read := s.reads.get(rid)) is None:
            self.reject("the read is pending", "ReleasedOnce", f"read {rid}")
        if read.fetching:
            self.reject("the read is fetched once", "ReleasedOnce", f"read {rid}")
        if thread in s.raising:
            self.reject("the rows of the thread's step have landed", "FailLoud", f"{thread!r}")
        if s.fetches.get(thread) in s.reads:
            self.reject("the thread fetches one read at a time", "ReleasedOnce", f"{thread!r}: {s.fetches[thread]}")
        read.fetching = True
        s.fetches[thread] = rid
        self.same("reads", True, post["fetching"])

    def end_fetch(self, args: Args, post: Args, thread: str) -> None:
        s, rid = self.s, args["read"]
        if (read := s.reads.pop(rid, None)) is None:
            self.reject("the read is pending", "ReleasedOnce", f"read {rid}")
        if s.fetches.pop(thread, None) != rid:
            self.reject("the thread has begun the fetch", "ReadIntegrity", f"read {rid}")
        for tid in read.joins:
            if s.drained.get(tid) != "WRITTEN" and (tid not in s.tasks or s.tasks[tid].state != "WRITTEN"):
                self.reject("the tasks that it joins are written", "ReadIntegrity", f"task {tid}")
        self._same_preserved(read, post["preserved"])
        if read.tags is not None and read.slots.size:
            if post["tags"] is None:
                self.differ("tags", "identities", None, read.slots)
            self.same_rows("tags", read.tags, post["tags"], read.slots)
        self.same("dropped", len(s.reads), post["pending"])

    def _same_preserved(self, read: Read, logged: list[int]) -> None:
        """Rows that were overwritten come from the preserved copies, the others from the pool as planned."""
        table, slots = self.s.keys[read.key], read.slots
        moved = table.version[slots] != read.versions
        if read.preserved is None and not np.count_nonzero(moved):
            changed = None
        else:
            changed = read.preserved if read.preserved is not None and read.all_preserved() else read.needs(moved)
        spec = [] if changed is None else changed.nonzero()[0].tolist()
        if spec != logged:
            self.differ("preserved", spec, logged, slots)
        wrong = table.pool[slots] != read.versions
        if changed is not None:
            stale = changed if read.preserved is None else changed & ~read.preserved
            if stale.any():
                self.reject("changed rows were preserved", "PreservedBeforeOverwrite", read.key, slots[stale])
            wrong &= ~changed
        if np.count_nonzero(wrong) and (wrong := read.needs(wrong)).any():
            self.reject("the pool has the planned rows", "ReadIntegrity", read.key, slots[wrong])

    def drop_read(self, args: Args, post: Args, thread: str) -> None:
        s, rids = self.s, args["reads"]
        if not rids or any(rid not in s.reads for rid in rids) or len(set(rids)) < len(rids):
            self.reject("the reads are pending", "ReleasedOnce", f"reads {rids}")
        fetched = rids == [s.fetches.get(thread)]
        built = sorted(rids) == sorted(rid for rid in s.building.get(thread, ()) if rid in s.reads)
        if not (fetched or built):
            self.reject("the thread's own reads are dropped, all of its step's", "ReleasedOnce", f"reads {rids}")
        for rid in rids:
            del s.reads[rid]
        self.same("dropped", len(s.reads), post["pending"])
