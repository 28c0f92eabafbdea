"""The steps that a benchmark drives: their requests, slots and scheduler outputs, all made before the clock runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from palimpsest.bench.rows import Identities


@dataclass(frozen=True)
class Part:
    """One request in a step: who it is, its blocks, the position it starts at, and how many tokens it computes.

    `number` is the request in its rows' identities. A new request whose first `hit` tokens are reused has the rows
    that the request numbered `source` wrote at the same positions.
    """

    number: int
    blocks: Sequence[int]
    start: int
    count: int
    hit: int = 0
    source: int = 0
    new: bool = False

    @property
    def name(self) -> str:
        """The request's id."""
        return f"request-{self.number:08d}"


class Step:
    """One step of a batch of `parts`, at whose begin the requests of `finished` have ended."""

    def __init__(self, parts: Sequence[Part], block_size: int, finished: Iterable[Part] = ()) -> None:
        self.parts = parts
        self.order = [part.name for part in parts]
        counts = np.array([part.count for part in parts], dtype=np.int64)
        self.count = int(counts.sum())
        numbers = np.repeat(np.array([part.number for part in parts], dtype=np.int64), counts)
        positions = _spans([part.start for part in parts], counts)
        #: who the step's own rows are
        self.computed = Identities(numbers, positions)
        #: where they go
        self.slots = torch.from_numpy(_slots(parts, counts, positions, block_size))
        has_hits = any(part.hit for part in parts)
        #: of each part the slots of its hit; empty in a step without hits
        self.hit_slots = [torch.from_numpy(_hit_slots(part, block_size)) for part in parts] if has_hits else []
        #: who the rows are that the step must deliver, request by request
        self.delivered = self._delivered() if has_hits else self.computed
        self.schedule = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=part.name, num_computed_tokens=part.hit, block_ids=[list(part.blocks)])
                for part in parts
                if part.new
            ],
            finished_req_ids={part.name for part in finished},
            num_scheduled_tokens={part.name: part.count for part in parts},
        )

    def _delivered(self) -> Identities:
        numbers, positions = [], []
        for part in self.parts:
            numbers += [np.full(part.hit, part.source), np.full(part.count, part.number)]
            positions += [np.arange(part.start + part.count)]
        return Identities(np.concatenate(numbers), np.concatenate(positions))


class View:
    """The batch as the cache asks for it: that of the step which `step` names."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.step = Step([], block_size)

    def batch_req_ids(self) -> list[str]:
        return list(self.step.order)

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: Mapping[str, int]) -> torch.Tensor:  # noqa: ARG002
        return self.step.slots


def _spans(starts: list[int], counts: np.ndarray) -> np.ndarray:
    """`start, start + 1, …` for each start, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(np.array(starts, dtype=np.int64) - before, counts) + np.arange(int(counts.sum()))


def _slots(parts: Sequence[Part], counts: np.ndarray, positions: np.ndarray, size: int) -> np.ndarray:
    lengths = np.array([len(part.blocks) for part in parts], dtype=np.int64)
    blocks = np.fromiter((block for part in parts for block in part.blocks), np.int64, int(lengths.sum()))
    first = np.repeat(np.cumsum(lengths) - lengths, counts)
    return np.asarray(blocks[first + positions // size] * size + positions % size, dtype=np.int64)


def _hit_slots(part: Part, size: int) -> np.ndarray:
    blocks = np.array(part.blocks[: part.hit // size], dtype=np.int64)
    return np.asarray(blocks[:, None] * size + np.arange(size)).ravel()
