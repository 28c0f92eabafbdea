"""The state that the rules work on: the specification's variables."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from .tables import (
    NO_ROWS,
    NOBODY,
    SEVERAL,
    Begun,
    Frozen,
    IntArray,
    KeyLanding,
    KeyTable,
    Landing,
    Read,
    Task,
    Writing,
    line_of,
)


class State:
    """The specification's variables."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.block_size = int(config["block_size"])
        self.num_blocks = int(config["num_blocks"])
        self.num_slots = self.num_blocks * self.block_size
        self.budget = int(config["budget_bytes"])
        self.tenant = np.zeros(self.num_slots, dtype=np.int64)
        self.keys: dict[str, KeyTable] = {}
        #: keys that each publish so far has treated alike, which is most of them: they have one table
        self.families: dict[tuple[str, ...], KeyTable] = {}
        #: by key: the identity of the row that was claimed last on each slot, a line as one item, where rows are tagged
        self.tags: dict[str, IntArray] = {}
        #: the number that identities have for a key
        self.key_numbers: dict[str, int] = {}
        self.tasks: dict[int, Task] = {}
        self.hi: list[int] = []
        self.lo: list[int] = []
        self.completed: list[int] = []
        self.failed: list[int] = []
        self.staged_bytes = 0
        #: bytes charged for a step that is not published
        self.reserved: int | None = None
        #: those that were, when the step began to wait for its page
        self.claimed_bytes: int | None = None
        self.over_budget = False
        self.holders: list[set[tuple[str, int]]] = [set() for _ in range(int(config["pages"]))]
        #: steps that wait for a page
        self.waiting: set[tuple[str, int]] = set()
        self.frozen: dict[int, Frozen] = {}
        #: by thread: the tasks that it waits for, the read that it fetches, the tasks that it writes
        self.waits: dict[str, list[int]] = {}
        self.fetches: dict[str, int] = {}
        self.writing: dict[str, Writing] = {}
        #: by thread: the reads of the step that it took last
        self.building: dict[str, list[int]] = {}
        #: threads that left the page of that step before its rows had landed
        self.raising: set[str] = set()
        #: the end of each task whose record was drained, and those among them whose waiters are not woken
        self.drained: dict[int, str] = {}
        self.unwoken: set[int] = set()
        self.steps: dict[int, tuple[int, list[int]]] = {}
        #: steps that were taken and have not left their page
        self.taken: set[int] = set()
        self.begun: Begun | None = None
        self.reads: dict[int, Read] = {}
        self.live: dict[str, int] = {}
        self.deferred: dict[str, int] = {}
        #: tasks that the engine has to hand to the committer
        self.to_dispatch: list[int] = []
        self.to_escalate: list[int] = []
        self.last_step: list[int] = []
        #: the last numbers given out
        self.generations = self.publishes = self.last_tid = self.last_read = self.last_claim = 0
        self.reports_forwards = False
        self.failure = self.closed = self.end_drained = self.ended = False
        self._groups: tuple[list[str], ...] = ()
        self._slots_of = np.arange(self.num_slots).reshape(self.num_blocks, self.block_size)
        #: the only tenant that the slots of a block may have; `SEVERAL` where a look at the slots has to tell
        self._owner = np.full(self.num_blocks, SEVERAL, dtype=np.int64)
        self._mark = np.zeros(self.num_slots, dtype=bool)
        self._mark_block = np.zeros(self.num_blocks, dtype=bool)
        self._place = np.zeros(self.num_slots, dtype=np.int64)

    # ---------------------------------------------------------------- keys

    def add_family(self, keys: Iterable[str], table: KeyTable | None = None) -> KeyTable:
        """Give `keys` a table of their own."""
        made = self.families[tuple(sorted(keys))] = KeyTable(self.num_slots) if table is None else table
        self.keys.update(dict.fromkeys(keys, made))
        return made

    def tell_apart(self, *groups: list[str]) -> None:
        """Keys of one table that are not of one of `groups` get tables of their own; so do keys that are new."""
        if groups == self._groups:
            return
        self._groups = groups
        for group in groups:
            if new := [key for key in group if key not in self.keys]:
                self.add_family(new)
        for keys, table in list(self.families.items()):
            parts: dict[tuple[bool, ...], list[str]] = {}
            for key in keys:
                parts.setdefault(tuple(key in group for group in groups), []).append(key)
            if len(parts) > 1:
                del self.families[keys]
                for part in parts.values():
                    self.add_family(part, copy.deepcopy(table))

    def landing_by_table(self, landing: Landing) -> dict[KeyTable, KeyLanding]:
        """What a pool write writes, once for keys of one table: those land alike."""
        return {self.keys[key]: rows for key, rows in landing.items()}

    def note_tags(self, key: str, slots: IntArray, tags: IntArray) -> None:
        """Remember the identities of rows just claimed."""
        lines = np.ascontiguousarray(tags).view(line_of(tags.shape[1])).ravel()
        if key not in self.tags:
            self.tags[key] = np.zeros(self.num_slots, dtype=lines.dtype)
        self.tags[key][slots] = lines

    def tags_at(self, key: str, slots: IntArray) -> IntArray | None:
        """The identities of the rows that were claimed last on `slots`, as a copy; None where rows are not tagged."""
        known = self.tags.get(key)
        return None if known is None else known.take(slots).view(np.int64).reshape(slots.size, -1)

    # ---------------------------------------------------------------- slots and their blocks

    def has_ended(self, tid: int) -> bool:
        """Whether a task was written, and its record drained or its waiters woken."""
        task = self.tasks.get(tid)
        state = self.drained.get(tid) if task is None else task.state
        return state == "WRITTEN" and (task is None or task.finished)

    def slots_of(self, blocks: IntArray) -> IntArray:
        """The slots of whole blocks, in order."""
        # several times as fast as indexing with blocks
        found: IntArray = self._slots_of.take(blocks, axis=0).ravel()
        return found

    def give(self, slots: IntArray, tenants: IntArray) -> IntArray:
        """Give `slots` to `tenants`; what comes back are the other slots of their blocks that another one has."""
        self.tenant[slots] = tenants
        owner, blocks = self._owner, slots // self.block_size
        before = owner[blocks]
        new = before != tenants
        if not np.count_nonzero(new):
            return NO_ROWS
        owner[blocks] = tenants
        shared = owner[blocks] != tenants
        if np.count_nonzero(shared):
            owner[blocks[shared]] = SEVERAL
        self._mark_block[blocks[new]] = True
        touched = self._mark_block.nonzero()[0]
        self._mark_block[touched] = False
        mates = self._left_over(touched)
        return self._not_given(mates, slots, tenants) if np.count_nonzero(shared) else mates

    def _left_over(self, blocks: IntArray) -> IntArray:
        """The slots of `blocks` whose tenant is not the one that their block has now."""
        slots = self.slots_of(blocks)
        theirs = self.tenant[slots]
        left: IntArray = slots[(theirs != NOBODY) & (theirs != self._owner[blocks].repeat(self.block_size))]
        return left

    def _not_given(self, mates: IntArray, slots: IntArray, tenants: IntArray) -> IntArray:
        """Those of `mates` whose tenant is none of those that their block, which several have, is given to."""
        size, theirs = self.block_size, self.tenant[mates]
        pairs = {*zip((slots // size).tolist(), tenants.tolist(), strict=True)}
        kept = [pair not in pairs for pair in zip((mates // size).tolist(), theirs.tolist(), strict=True)]
        left: IntArray = mates[np.array(kept, dtype=bool)]
        return left

    def give_back(self, blocks: IntArray) -> None:
        """Whole blocks are nobody's."""
        self._owner[blocks] = NOBODY

    def among(self, slots: IntArray, others: IntArray) -> np.ndarray:
        """Which of `slots` are among `others`."""
        return self.each_among([slots], others)[0]

    def each_among(self, several: Collection[IntArray], others: IntArray) -> list[np.ndarray]:
        """Which of each of `several` are among `others`."""
        if not several:
            return []
        self._mark[others] = True
        found = [self._mark[slots] for slots in several]
        self._mark[others] = False
        return found

    def last_of_each(self, slots: IntArray) -> np.ndarray | None:
        """Which rows are the last ones of their slot; None when no slot comes twice."""
        rows = np.arange(slots.size)
        self._place[slots] = rows
        last: np.ndarray = self._place[slots] == rows
        return None if np.count_nonzero(last) == slots.size else last

    def excerpt(self, slots: IntArray | None = None) -> dict[str, Any]:
        """What a rejection shows: tasks, pages, reads, and the slots in question."""
        at = NO_ROWS if slots is None else slots[:8]
        at = at[(at >= 0) & (at < self.num_slots)]
        return {
            "tasks": {tid: task.state for tid, task in list(self.tasks.items())[-16:]},
            "queues": {"hi": list(self.hi), "lo": list(self.lo)},
            "records": {"completed": list(self.completed), "failed": list(self.failed)},
            "holders": [sorted(holders) for holders in self.holders],
            "staged_bytes": self.staged_bytes,
            "steps": sorted(self.steps),
            "reads": sorted(self.reads),
            "slots": at.tolist(),
            "tenant": self.tenant[at].tolist(),
            "keys": {
                key: {name: getattr(table, name)[at].tolist() for name in ("version", "status", "writer", "pool")}
                for key, table in self.keys.items()
            },
        }
