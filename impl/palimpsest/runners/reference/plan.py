"""What the scheduler decides for one step, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from palimpsest.runners.reference.requests import Sequence

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """One request's part of a step: tokens `start` to `stop`, after a hit of `hit` tokens if it is new."""

    sequence: Sequence
    generation: int
    start: int
    stop: int
    #: slots of positions 0 to `stop`
    slots: IntArray
    #: generations that wrote the hit rows; empty for a request that is not new
    hit_writers: IntArray
    new: bool

    @property
    def req_id(self) -> str:
        """The request's id."""
        return self.sequence.req_id

    @property
    def count(self) -> int:
        """Tokens that this step computes."""
        return self.stop - self.start

    @property
    def hit(self) -> int:
        """Tokens of the prefix hit that this step begins with."""
        return int(self.hit_writers.size)


@dataclass(frozen=True)
class NewRequest:
    """A request that a step schedules for the first time in its generation."""

    req_id: str
    num_computed_tokens: int
    block_ids: list[list[int]]


@dataclass
class StepPlan:
    """A scheduler output, with the attributes that the cache reads."""

    shares: list[Share] = field(default_factory=list)
    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] = field(default_factory=set)

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens to compute, by request."""
        return {share.req_id: share.count for share in self.shares}

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return sum(share.count for share in self.shares)


@dataclass
class Counts:
    """What the scheduler did."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    tokens: int = 0
    hits: int = 0
    multi_block_hits: int = 0
    same_step_hits: int = 0
    preemptions: int = 0
    generations: int = 0
    steps: int = 0
