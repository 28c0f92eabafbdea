"""The state that the rules work on: the specification's variables, as arrays over slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

ABSENT, IN_TRANSIT, COMMITTED = 0, 1, 2
FROM_POOL, STAGED, NOTHING = 0, 1, 2
#: a pool row that is being written
TORN = -1
#: tenants of a block: none, and more than one
NOBODY, SEVERAL = 0, -1

IntArray = np.ndarray
NO_ROWS: IntArray = np.empty(0, dtype=np.int64)


def lines_at(table: IntArray, rows: IntArray) -> IntArray:
    """The lines of a two-dimensional table at `rows`, as a copy: several times as fast as indexing."""
    return table.take(rows, axis=0)


@cache
def _line(width: int) -> np.dtype[Any]:
    """A line as one item: it is written several times as fast that way as by its columns."""
    return np.dtype((np.void, width * np.dtype(np.int64).itemsize))


class KeyTable:
    """One key: what is known of it on each slot, and the version of the row that lies in the pool."""

    def __init__(self, num_slots: int) -> None:
        self.version = np.zeros(num_slots, dtype=np.int64)
        self.status = np.zeros(num_slots, dtype=np.int8)
        self.writer = np.zeros(num_slots, dtype=np.int64)
        self.pool = np.zeros(num_slots, dtype=np.int64)
        #: the identity of the row that was claimed last, where rows are tagged
        self.tags: IntArray | None = None

    def note_tags(self, slots: IntArray, tags: IntArray) -> None:
        """Remember the identities of rows just claimed."""
        if self.tags is None:
            self.tags = np.zeros((self.version.size, tags.shape[1]), dtype=np.int64)
        line = _line(self.tags.shape[1])
        self.tags.view(line)[slots, 0] = np.ascontiguousarray(tags).view(line)[:, 0]


class KeyLanding(NamedTuple):
    """The rows of one key that a set of tasks writes: slots, whose they are, which version, and their identities
    where those of a whole record are known."""

    slots: IntArray
    tids: IntArray
    versions: IntArray
    tags: IntArray | None = None


#: what one pool write writes, by key
Landing = dict[str, KeyLanding]


class Record:
    """The rows of one published step that are written with one schedule."""

    __slots__ = ("disturbed", "owners", "slots", "tags", "tids", "versions")

    def __init__(self, slots: IntArray, owners: list[int], whose: IntArray) -> None:
        self.slots, self.owners = slots, owners
        #: the task of each row
        self.tids: IntArray = np.array(owners, dtype=np.int64).take(whose) if owners else NO_ROWS
        #: by key: the version of each row, and the identity where rows are tagged
        self.versions: dict[str, IntArray] = {}
        self.tags: dict[str, IntArray] = {}
        #: a later claim or a reset took rows over
        self.disturbed = False


@dataclass(slots=True)
class Ticket:
    """A charge and the tasks that hold it."""

    nbytes: int
    holders: set[int]


@dataclass(slots=True)
class Task:
    """A write task."""

    tid: int
    request: str
    deferred: bool
    state: str
    page: int | None
    #: publish number of its first rows
    first: int
    #: the ranges of records that it writes, in order
    parts: list[tuple[Record, int, int]] = field(default_factory=list)
    lost: dict[str, list[IntArray]] = field(default_factory=dict)
    abandoned: bool = False
    #: what the pool write of its set writes, once that was decided
    landing: Landing | None = None
    #: the charges of the clones that it keeps
    tickets: list[Ticket] = field(default_factory=list)
    recorded: bool = False
    finished: bool = False

    def lose(self, key: str, slots: IntArray) -> None:
        """Note that a later tenant or claim took rows over."""
        self.lost.setdefault(key, []).append(slots)
        for record, _, _ in self.parts:
            record.disturbed = True

    def lost_slots(self, key: str) -> IntArray:
        """Slots of `key` that were taken over."""
        return np.concatenate(self.lost[key]) if key in self.lost else NO_ROWS


@dataclass(slots=True)
class Read:
    """A planned read."""

    key: str
    slots: IntArray
    versions: IntArray
    #: which rows come from the pool; None for all
    from_pool: np.ndarray | None
    joins: list[int]
    tags: IntArray | None
    #: which rows were copied aside; None for none
    preserved: np.ndarray | None = None
    fetching: bool = False

    def needs(self, rows: np.ndarray) -> np.ndarray:
        """Those of `rows` (a mask) that come from the pool."""
        return rows if self.from_pool is None else rows & self.from_pool

    def all_preserved(self) -> bool:
        """Whether each pool row has a preserved copy."""
        if self.preserved is None:
            return False
        return bool((self.preserved if self.from_pool is None else self.preserved[self.from_pool]).all())


@dataclass(slots=True)
class Begun:
    """A step that was begun and not published."""

    hits: dict[str, IntArray]
    reads: dict[tuple[str, str], int] = field(default_factory=dict)
    #: its forward has run
    forward: bool = False


@dataclass(slots=True)
class Frozen:
    """A copy from the live buffers to a page, and the identities of the rows."""

    step: int
    keys: list[str]
    tags: dict[str, IntArray]
    landed: bool = False
    #: its step was published
    published: bool = False


@dataclass(slots=True)
class Writing:
    """How far a thread has come with a set of tasks."""

    stage: str
    tids: list[int]


class State:
    """The specification's variables."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.block_size = int(config["block_size"])
        self.num_blocks = int(config["num_blocks"])
        self.num_slots = self.num_blocks * self.block_size
        self.budget = int(config["budget_bytes"])
        self.tenant = np.zeros(self.num_slots, dtype=np.int64)
        self.keys: dict[str, KeyTable] = {}
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
        self._slots_of = np.arange(self.num_slots).reshape(self.num_blocks, self.block_size)
        #: the only tenant that the slots of a block may have; `SEVERAL` where a look at the slots has to tell
        self._owner = np.full(self.num_blocks, SEVERAL, dtype=np.int64)
        self._mark = np.zeros(self.num_slots, dtype=bool)
        self._place = np.zeros(self.num_slots, dtype=np.int64)

    def has_ended(self, tid: int) -> bool:
        """Whether a task was written, and its record drained or its waiters woken."""
        task = self.tasks.get(tid)
        state = self.drained.get(tid) if task is None else task.state
        return state == "WRITTEN" and (task is None or task.finished)

    def slots_of(self, blocks: IntArray) -> IntArray:
        """The slots of whole blocks, in order."""
        return lines_at(self._slots_of, blocks).ravel()

    def of_others(self, slots: IntArray, tenants: IntArray) -> IntArray:
        """In the blocks of `slots`, which are now given to `tenants`, the other slots that another one keeps."""
        owner, blocks = self._owner, slots // self.block_size
        before = owner.take(blocks)
        new = before != tenants
        if not np.count_nonzero(new):
            return NO_ROWS
        owner[blocks] = tenants
        shared = owner.take(blocks) != tenants
        if np.count_nonzero(shared):
            owner[blocks[shared]] = SEVERAL
        taken = blocks[new & (before != NOBODY)]
        if not taken.size:
            return NO_ROWS
        mates = self._left_over(np.array(sorted(set(taken.tolist())), dtype=np.int64))
        if mates.size:
            mates = mates[~self.among(mates, slots)]
        return self._not_given(mates, slots, tenants) if np.count_nonzero(shared) else mates

    def _left_over(self, blocks: IntArray) -> IntArray:
        """The slots of `blocks` whose tenant is not the one that their block has now."""
        theirs = lines_at(self.tenant.reshape(self._slots_of.shape), blocks)
        stale = (theirs != NOBODY) & (theirs != self._owner[blocks][:, None])
        return lines_at(self._slots_of, blocks)[stale] if np.count_nonzero(stale) else NO_ROWS

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
        self._mark[others] = True
        found: np.ndarray = self._mark[slots]
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
