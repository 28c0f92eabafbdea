"""What the state consists of: keys as arrays over slots, the rows of a step, tasks, reads."""

from __future__ import annotations

from collections.abc import Iterable
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


def distinct(values: IntArray) -> list[int]:
    """The numbers among `values` in order, each once: quick where equal ones stand together, as those of rows do."""
    if values.size > 40:
        return sorted({*values[:1].tolist(), *values[1:][values[1:] != values[:-1]].tolist()})
    return sorted(set(values.tolist()))


@cache
def line_of(width: int) -> np.dtype[Any]:
    """A line as one item: it is written several times as fast that way as by its columns."""
    return np.dtype((np.void, width * np.dtype(np.int64).itemsize))


class KeyTable:
    """Keys that were claimed and written alike: what is known of each on each slot, and which version of its row lies
    in the pool."""

    def __init__(self, num_slots: int) -> None:
        self.version = np.zeros(num_slots, dtype=np.int64)
        self.status = np.zeros(num_slots, dtype=np.int8)
        self.writer = np.zeros(num_slots, dtype=np.int64)
        self.pool = np.zeros(num_slots, dtype=np.int64)


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
        self.tids: IntArray = np.array(owners, dtype=np.int64)[whose] if owners else NO_ROWS
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


@dataclass(slots=True, eq=False)
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
    finished: bool = False

    def lose(self, keys: Iterable[str], slots: IntArray) -> None:
        """Note that a later tenant or claim took rows over."""
        for key in keys:
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
    tags: dict[str, IntArray] = field(repr=False)
    landed: bool = False
    #: its step was published
    published: bool = False


@dataclass(slots=True)
class Writing:
    """How far a thread has come with a set of tasks."""

    stage: str
    tids: list[int]
    tasks: list[Task] = field(repr=False)
