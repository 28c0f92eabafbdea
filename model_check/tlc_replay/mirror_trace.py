"""A host mirror's trace as TLC reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .literals import literal, set_of
from .mirror_choice import Choice
from .mirror_plans import Record


@dataclass
class MirrorTrace:
    """A trace as TLC reads it, and the constants that it needs."""

    module: ClassVar[str] = "MirrorReplay"

    name: str
    choice: Choice
    observed: bool
    plans: list[Record]
    events: list[Record]
    ranks: int
    block_rows: int
    eager: bool
    num_device: int
    #: the events of the code's trace, and how many of them touch what is replayed
    of: int
    touching: int

    @property
    def bounds(self) -> tuple[int, ...]:
        """What traces of one run must share."""
        return self.ranks, self.block_rows, self.eager

    @property
    def scope(self) -> str:
        """What of the code's trace this is."""
        if len(self.events) < self.touching:
            return f"the first of {self.touching:,} of {self.choice}, of {self.of:,}"
        return f"all of {self.choice}, of {self.of:,}"

    def record(self) -> Record:
        """What stands in the file."""
        drafts = self.choice.draft is not None
        return {
            "name": self.name,
            "observed": self.observed,
            "drafts": drafts,
            "plans": self.plans,
            "events": self.events,
        }

    @staticmethod
    def definitions(_: Sequence[MirrorTrace]) -> list[str]:
        """What TraceFile defines besides the traces."""
        return []

    @staticmethod
    def configuration(traces: Sequence[MirrorTrace]) -> tuple[dict[str, object], dict[str, str]]:
        """Constants for all of `traces`, and definitions that stand for others."""
        first = traces[0]
        constants: dict[str, object] = {
            "Ranks": set_of(literal(rank_name(rank)) for rank in range(first.ranks)),
            "Writer": literal(rank_name(0)),
            "HostBlocks": set_of(range(max(len(each.choice.blocks) for each in traces))),
            "DevBlocks": set_of(range(max(1, *(each.num_device for each in traces)))),
            "Offsets": set_of(range(first.block_rows)),
            "Eager": str(first.eager).upper(),
            "CanShutdown": "TRUE",
        }
        return constants, {"Schedules": "AllPlans"}


def rank_name(rank: int) -> str:
    """A rank in the specification."""
    return "w" if rank == 0 else f"r{rank}"
