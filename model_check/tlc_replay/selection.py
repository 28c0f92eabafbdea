"""Which part of a trace TLC replays: all of it, or what touches a few blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palimpsest.trace import Event


@dataclass
class Step:
    """A step of the trace: its begin, its save where it was published, and what of them is selected."""

    begin: Event
    publish: Event | None = None
    #: a save was tried before, or instead of, the publish
    tried: bool = False
    #: the selected requests of the batch, in its order
    order: list[str] = field(default_factory=list)
    hits: dict[str, list[int]] = field(default_factory=dict)

    @property
    def step_id(self) -> int | None:
        """The number under which it was published."""
        return None if self.publish is None else int(self.publish.args["step"])


def steps_of(events: Sequence[Event]) -> list[Step]:
    """The steps, in the order in which they were begun."""
    steps: list[Step] = []
    for event in events:
        if event.action == "begin_step":
            steps.append(Step(event))
        elif event.action == "publish":
            steps[-1].publish = event
        elif event.action == "claim_page_begin":
            steps[-1].tried = True
    return steps


def shares(publish: Event) -> Iterator[tuple[str, np.ndarray]]:
    """Each request of a published step with its rows' places in the step."""
    counts = np.asarray(publish.args["counts"], dtype=np.int64)
    ends = np.cumsum(counts)
    for request, start, stop in zip(publish.args["requests"], ends - counts, ends, strict=True):
        yield request, np.arange(start, stop)


class Selection:
    """The blocks, steps and requests that are replayed.

    They are the `whole` trace where `blocks` is None. A save that was never published is left out: what its step
    would have written is not in the trace.
    """

    def __init__(self, events: Sequence[Event], block_size: int, blocks: Collection[int] | None) -> None:
        self.steps, self.block_size = steps_of(events), block_size
        self.whole = blocks is None and not any(step.tried and step.publish is None for step in self.steps)
        chosen = touched(self.steps, block_size) if blocks is None else set(blocks)
        self._place = {block: place for place, block in enumerate(sorted(chosen))}
        self.requests: set[str] = set()
        for step in self.steps:
            self._select(step)
        self._by_begin = {id(step.begin): step for step in self.steps}

    @property
    def num_blocks(self) -> int:
        """How many blocks are replayed."""
        return len(self._place)

    def has_block(self, block: int) -> bool:
        """Whether the block is replayed."""
        return block in self._place

    def slot(self, slot: int) -> int | None:
        """The slot's number in the replay; None where its block is left out."""
        place = self._place.get(slot // self.block_size)
        return None if place is None else place * self.block_size + slot % self.block_size

    def slots_of(self, block: int) -> list[int]:
        """The block's slots, in the replay's numbers."""
        first = self._place[block] * self.block_size
        return list(range(first, first + self.block_size))

    def step_of(self, begin: Event) -> Step:
        """The step that an event began."""
        return self._by_begin[id(begin)]

    def overtaken(self, step: Step) -> list[str]:
        """The selected hits on blocks that the step writes itself, selected or not."""
        if step.publish is None:
            return []
        written = set((np.asarray(step.publish.args["slots"]) // self.block_size).tolist())
        blocks = {hit["request"]: hit["blocks"] for hit in step.begin.args["hits"]}
        return [request for request in step.hits if not written.isdisjoint(map(int, blocks[request]))]

    def _select(self, step: Step) -> None:
        for hit in step.begin.args["hits"]:
            blocks = [int(block) for block in hit["blocks"] if self.has_block(int(block))]
            if blocks:
                step.hits[hit["request"]] = [slot for block in blocks for slot in self.slots_of(block)]
        if step.publish is not None:
            slots = np.asarray(step.publish.args["slots"])
            step.order = [
                request
                for request, rows in shares(step.publish)
                if request in step.hits
                or any(self.has_block(b) for b in set((slots[rows] // self.block_size).tolist()))
            ]
        self.requests |= {*step.order, *step.hits}


def touched(steps: Sequence[Step], block_size: int) -> set[int]:
    """All blocks that the steps name."""
    found: set[int] = set()
    for step in steps:
        found |= {int(block) for block in step.begin.args["allocated"]}
        found |= {int(block) for hit in step.begin.args["hits"] for block in hit["blocks"]}
        if step.publish is not None:
            found |= set((np.asarray(step.publish.args["slots"]) // block_size).tolist())
    return found


def busiest_pairs(events: Sequence[Event], pairs: int) -> list[tuple[int, ...]]:
    """Disjoint pairs of blocks that most new owners and hits share, where races would be: a busy block and the one
    that is most often in a hit with it."""
    owners: Counter[int] = Counter()
    together: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event.action == "begin_step":
            owners.update(int(block) for block in event.args["allocated"])
            for hit in event.args["hits"]:
                blocks = [int(block) for block in hit["blocks"]]
                owners.update(blocks)
                together.update(
                    pair for i, a in enumerate(blocks) for b in blocks[i + 1 :] for pair in ((a, b), (b, a))
                )
    chosen: list[tuple[int, ...]] = []
    free = set(owners)
    for block, _ in owners.most_common():
        if block in free and len(chosen) < pairs:
            free.discard(block)
            partner = max(free, key=lambda other: (together[block, other], owners[other], -other), default=None)
            free.discard(-1 if partner is None else partner)
            chosen.append((block,) if partner is None else (block, partner))
    return chosen


def as_list(values: Any) -> list[Any]:
    """A logged array as a list."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
