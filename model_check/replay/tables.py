"""The state that the rules work on: the specification's variables, as arrays over slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

ABSENT, IN_TRANSIT, COMMITTED = 0, 1, 2
FROM_POOL, STAGED, NOTHING = 0, 1, 2
#: a pool row that is being written
TORN = -1

IntArray = np.ndarray


class KeyTable:
    """One key: what is known of it on each slot, and the version of the row that lies in the pool."""

    def __init__(self, num_slots: int) -> None:
        self.version = np.zeros(num_slots, dtype=np.int64)
        self.status = np.zeros(num_slots, dtype=np.int64)
        self.writer = np.zeros(num_slots, dtype=np.int64)
        self.pool = np.zeros(num_slots, dtype=np.int64)
        #: the identity of the row that was claimed last, where rows are tagged
        self.tags: IntArray | None = None

    def note_tags(self, slots: IntArray, tags: IntArray) -> None:
        """Remember the identities of rows just claimed."""
        if self.tags is None:
            self.tags = np.zeros((self.version.size, tags.shape[1]), dtype=np.int64)
        self.tags[slots] = tags


class KeyLanding(NamedTuple):
    """The rows of one key that a set of tasks writes, by slot: whose they are and which version."""

    slots: IntArray
    tids: IntArray
    versions: IntArray


#: what one pool write writes, by key
Landing = dict[str, KeyLanding]


@dataclass
class Task:
    """A write task."""

    tid: int
    request: str
    deferred: bool
    state: str
    page: int | None
    #: (key, slots, versions) of each step that added rows, in order
    rows: list[tuple[str, IntArray, IntArray]] = field(default_factory=list)
    lost: dict[str, list[IntArray]] = field(default_factory=dict)
    abandoned: bool = False
    #: publish number of its first rows
    first: int = 0
    #: what the pool write of its set writes, once that was decided
    landing: Landing | None = None
    recorded: bool = False
    finished: bool = False

    def lost_slots(self, key: str) -> IntArray:
        """Slots of `key` that were taken over."""
        return np.concatenate(self.lost[key]) if key in self.lost else np.empty(0, dtype=np.int64)


@dataclass
class Read:
    """A planned read."""

    request: str
    key: str
    slots: IntArray
    versions: IntArray
    sources: IntArray
    joins: list[int]
    preserved: np.ndarray
    tags: IntArray | None
    fetching: bool = False

    def all_preserved(self) -> bool:
        """Whether each pool row has a preserved copy."""
        pool = self.sources == FROM_POOL
        return bool(self.preserved.any() and self.preserved[pool].all())


@dataclass
class Ticket:
    """A charge and the tasks that hold it."""

    nbytes: int
    holders: set[int]


@dataclass
class Begun:
    """A step that was begun and not published."""

    hits: dict[str, IntArray]
    reads: dict[tuple[str, str], int]


class State:
    """The specification's variables."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.block_size = int(config["block_size"])
        self.num_slots = int(config["num_blocks"]) * self.block_size
        self.budget = int(config["budget_bytes"])
        self.tenant = np.zeros(self.num_slots, dtype=np.int64)
        self._mark = np.zeros(self.num_slots, dtype=bool)
        self.keys: dict[str, KeyTable] = {}
        self.tasks: dict[int, Task] = {}
        self.hi: list[int] = []
        self.lo: list[int] = []
        self.completed: list[int] = []
        self.failed: list[int] = []
        self.staged_bytes = 0
        self.tickets: list[Ticket] = []
        self.holders: list[set[tuple[str, int]]] = [set() for _ in range(int(config["pages"]))]
        self.waiting: set[tuple[str, int]] = set()
        #: the waits for tasks that have begun
        self.joining: list[list[int]] = []
        #: tasks that were written and drained
        self.drained: set[int] = set()
        #: tasks that were drained before their waiters were woken
        self.unwoken: set[int] = set()
        self.landed: dict[int, bool] = {}
        self.frozen_step: dict[int, int] = {}
        self.frozen_tags: dict[int, Any] = {}
        self.steps: dict[int, tuple[int, list[int]]] = {}
        self.begun: Begun | None = None
        self.reads: dict[int, Read] = {}
        self.live: dict[str, int] = {}
        self.deferred: dict[str, int] = {}
        self.generations = 0
        self.publishes = 0
        self.last_step: list[int] = []
        self.failure = False
        self.closed = False
        self.ended = False

    def among(self, slots: IntArray, others: IntArray) -> np.ndarray:
        """Which of `slots` are among `others`."""
        self._mark[others] = True
        found: np.ndarray = self._mark[slots]
        self._mark[others] = False
        return found

    def distinct(self, slots: IntArray) -> bool:
        """Whether no slot comes twice."""
        self._mark[slots] = True
        count = int(np.count_nonzero(self._mark))
        self._mark[slots] = False
        return count == slots.size

    def excerpt(self, slots: IntArray | None = None) -> dict[str, Any]:
        """What a rejection shows: tasks, pages, reads, and the slots in question."""
        at = slots[:8] if slots is not None else np.empty(0, dtype=np.int64)
        return {
            "tasks": {tid: task.state for tid, task in list(self.tasks.items())[-16:]},
            "queues": {"hi": self.hi, "lo": self.lo},
            "records": {"completed": self.completed, "failed": self.failed},
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
