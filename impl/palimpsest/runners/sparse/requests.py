"""Requests of the sparse runner: what a client asks for, where its pages lie, and who wrote each of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class SparseRequest:
    """What a client asks for. `arrival` is the step from which it can be admitted.

    `imported`: so many rows of its prompt were computed elsewhere and come into the host pool as they are. `forks`:
    it shares that many tokens with an earlier request, and begins on copies of its host blocks. `preempted_at`: it
    is preempted once it has so many rows, also where there is room for it.
    """

    req_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int = 0
    imported: int = 0
    forks: tuple[str, int] | None = None
    preempted_at: tuple[int, ...] = ()


class Phase(Enum):
    """Where a request is. A draining one was preempted, and its pages are on their way to the host."""

    WAITING = "waiting"
    RUNNING = "running"
    DRAINING = "draining"
    DONE = "done"


@dataclass
class Sequence:
    """A request being served."""

    request: SparseRequest
    #: stands for the request in the identity of its rows
    number: int
    tokens: list[int]
    phase: Phase = Phase.WAITING
    state: int | None = None
    #: positions below this have accepted rows in every layer
    computed: int = 0
    host_blocks: list[int] = field(default_factory=list)
    #: by page, its block in each source; a page that is not here is not on the device
    resident: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: pages whose rows are acknowledged to be on the host, and those on their way
    clean: set[int] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)
    #: request number and step that wrote the row of each accepted position
    writers: list[tuple[int, int]] = field(default_factory=list)
    #: the host blocks are there: allocated, imported or copied
    begun: bool = False
    #: how many of the preemptions that its client asked for are over
    preempted: int = 0

    @property
    def req_id(self) -> str:
        """The request's id."""
        return self.request.req_id

    @property
    def todo(self) -> int:
        """Tokens that have no row yet; the last one gives the next token."""
        return len(self.tokens) - self.computed

    @property
    def finished(self) -> bool:
        """Whether all its tokens are there."""
        return len(self.tokens) >= len(self.request.prompt) + self.request.max_tokens

    @property
    def to_be_preempted(self) -> bool:
        """Whether the next preemption that its client asked for is due."""
        asked = self.request.preempted_at[self.preempted :]
        return bool(asked) and self.computed >= asked[0]

    def accept(self, step: int, count: int) -> None:
        """`count` more rows, written in `step`, are accepted."""
        self.writers.extend([(self.number, step)] * count)
        self.computed += count
