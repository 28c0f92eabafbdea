"""A scheduler that makes random steps: who is new, who hits what, who goes on, who ends, which blocks change hands.

Every choice is drawn: `draw(n)` gives a number below n. So a test that generates programs can shrink them, and a soak
can take its choices from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..explore.model import BLOCK_SIZE, Part

Draw = Callable[[int], int]

NAMES = "abcdef"
NUM_BLOCKS = 10


@dataclass
class Live:
    """A request that has not ended: its blocks, and its tokens so far."""

    blocks: list[int]
    tokens: int


@dataclass
class Step:
    """What the scheduler has decided."""

    parts: dict[str, Part] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


class Scheduler:
    """Blocks and requests. Blocks go back one step before their request is reported as ended, as engines do it."""

    def __init__(self) -> None:
        self.live: dict[str, Live] = {}
        self._free = list(range(NUM_BLOCKS))
        self._leaving: list[str] = []
        #: blocks that somebody wrote: they can be hit, by whoever and whether or not they are free
        self._known: list[int] = []
        #: blocks given away in this step that are not full at its end: nobody can hit them yet
        self._growing: set[int] = set()

    def step(self, draw: Draw) -> Step:
        """The next step; one without parts is idle."""
        step = Step()
        self._growing = set()
        self._report(step, draw)
        for name in [name for name in self.live if draw(6) == 0]:
            self._leave(name)
        for name in list(self.live):
            if draw(4):
                self._go_on(step, name, draw)
        for _ in range(draw(3)):
            self._start(step, draw)
        return step

    def end_all(self) -> Step:
        """An idle step that reports everybody as ended."""
        for name in list(self.live):
            self._leave(name)
        step = Step(finished=list(self._leaving))
        self._leaving = []
        return step

    def _report(self, step: Step, draw: Draw) -> None:
        for name in self._leaving:
            (step.preempted if draw(3) == 0 else step.finished).append(name)
        self._leaving = []

    def _leave(self, name: str) -> None:
        self._release(self.live.pop(name).blocks)
        self._leaving.append(name)

    def _release(self, blocks: list[int]) -> None:
        held = {block for each in self.live.values() for block in each.blocks}
        self._free += [block for block in blocks if block not in held and block not in self._free]

    def _take(self, count: int) -> list[int] | None:
        """So many free blocks, those that came free first; None where there are not enough."""
        if count > len(self._free):
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _go_on(self, step: Step, name: str, draw: Draw) -> None:
        request = self.live[name]
        count = draw(4)
        blocks = self._take(max(0, _blocks(request.tokens + count) - len(request.blocks)))
        if blocks is None:
            self._leave(name)  # preempted for want of blocks
            return
        request.blocks += blocks
        self._add(step, name, Part(list(request.blocks), request.tokens, count, new=False), blocks)

    def _start(self, step: Step, draw: Draw) -> None:
        names = [name for name in NAMES if name not in self.live and name not in self._leaving]
        if not names:
            return
        name = names[draw(len(names))]
        hits = self._draw_hits(draw)
        self._free = [block for block in self._free if block not in hits]
        count = 1 + draw(2 * BLOCK_SIZE)
        blocks = self._take(_blocks(count))
        if blocks is None:
            self._release(hits)
            return
        start = len(hits) * BLOCK_SIZE
        self.live[name] = Live([*hits, *blocks], start)
        self._add(step, name, Part([*hits, *blocks], start, count, hit=start), blocks)

    def _draw_hits(self, draw: Draw) -> list[int]:
        known = [block for block in self._known if block not in self._growing]
        return [known.pop(draw(len(known))) for _ in range(draw(3)) if known]

    def _add(self, step: Step, name: str, part: Part, given: list[int]) -> None:
        step.parts[name] = part
        self.live[name].tokens = end = part.start + part.count
        self._growing |= {block for block in given if part.blocks.index(block) >= end // BLOCK_SIZE}
        self._known += [block for block in given if block not in self._known]


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
