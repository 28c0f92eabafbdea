"""The workloads: what each step has in it, and what the cache may cost beside the floor.

Every list of steps starts on a pool whose rows are all written, and its requests are new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from palimpsest.bench.steps import Part, Step
from palimpsest.prefix_cache import HIDDEN_KEY, KeyLayout

BLOCK_SIZE = 16
TALKER, CODES = "talker", "codes"

_HIDDEN = {HIDDEN_KEY: KeyLayout(torch.bfloat16, (2048,))}
_BOTH = {**_HIDDEN, TALKER: KeyLayout(torch.bfloat16, (1024,))}
_CODES = {CODES: KeyLayout(torch.float32, (8,))}


@dataclass(frozen=True)
class Sizes:
    """How large a workload is."""

    requests: int
    #: tokens that each request computes in a step
    tokens: int
    steps: int
    #: tokens of each request's hit
    hit: int = 0
    num_blocks: int = 4096


@dataclass(frozen=True)
class Workload:
    """A list of steps to be made anew for each repeat, the keys that they save, and the goal in floors."""

    letter: str
    title: str
    goal: float
    layouts: dict[str, KeyLayout]
    build: Callable[[Maker, Sizes], list[Step]]
    sizes: Sizes
    quick: Sizes
    deferred: frozenset[str] = frozenset()
    #: seconds of forward between the begin of a step and its save
    forward_s: float = 0.0
    #: goal of the write of all deferred rows when their requests end
    finish_goal: float | None = None


@dataclass
class Maker:
    """Makes the steps of one cache: requests are numbered on, so that none comes twice."""

    num_blocks: int
    block_size: int = BLOCK_SIZE
    #: the requests that the steps made so far leave alive
    alive: list[Part] = field(default_factory=list)
    #: the requests that wrote the pool full, in the order of their blocks
    writers: list[Part] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def step(self, parts: list[Part]) -> Step:
        """A step in which new parts take the place of all that live."""
        going_on = {part.number for part in parts}
        finished = [part for part in self.alive if part.number not in going_on]
        self.alive = parts
        return Step(parts, self.block_size, finished)

    def end(self) -> Step:
        """A step without a forward, in which all requests have ended."""
        return self.step([])

    def new(self, blocks: list[int], start: int, count: int, *, source: Part | None = None) -> Part:
        """A new request; one that starts later than at 0 hits the rows that `source` wrote."""
        number = source.number if source is not None else 0
        return Part(next(self._numbers), blocks, start, count, hit=start, source=number, new=True)

    def fill(self, tokens: int) -> list[Step]:
        """Steps that write every row of the pool, by requests of `tokens` one after the other."""
        each = min(self.num_blocks, -(-tokens // self.block_size))
        spans = [range(at, min(at + each, self.num_blocks)) for at in range(0, self.num_blocks, each)]
        self.writers = [self.new(list(span), 0, len(span) * self.block_size) for span in spans]
        return [self.step([writer]) for writer in self.writers]


def decode(maker: Maker, sizes: Sizes) -> list[Step]:
    """Requests that compute a token per step, from their first one on; as many steps as fit their blocks, then
    others in the same blocks."""
    each = min(-(-sizes.steps // maker.block_size), maker.num_blocks // sizes.requests)
    blocks = [list(range(at * each, (at + 1) * each)) for at in range(sizes.requests)]
    steps, parts = [], []
    for number in range(sizes.steps):
        position = number % (each * maker.block_size)
        if position == 0:
            parts = [maker.new(own, 0, 1) for own in blocks]
        else:
            parts = [Part(part.number, part.blocks, position, 1) for part in parts]
        steps.append(maker.step(parts))
    return steps


def prefill(maker: Maker, sizes: Sizes) -> list[Step]:
    """A new request per step, in blocks that an earlier one has left."""
    each = -(-sizes.tokens // maker.block_size)
    places = maker.num_blocks // each
    starts = [number % places * each for number in range(sizes.steps)]
    return [maker.step([maker.new(list(range(at, at + each)), 0, sizes.tokens)]) for at in starts]


def hits(maker: Maker, sizes: Sizes) -> list[Step]:
    """New requests that hit what the first requests wrote, and compute some tokens in blocks of their own."""
    own = -(-sizes.tokens // maker.block_size)
    sources = [writer for writer in maker.writers if len(writer.blocks) * maker.block_size == sizes.hit]
    sources = sources[: sizes.requests]
    free = range(len(sources) * sizes.hit // maker.block_size, maker.num_blocks - own + 1, own)
    places = itertools.cycle(free)
    steps = []
    for _ in range(sizes.steps):
        taken = [next(places) for _ in sources]
        steps.append(
            maker.step(
                [
                    maker.new([*source.blocks, *range(at, at + own)], sizes.hit, sizes.tokens, source=source)
                    for source, at in zip(sources, taken, strict=True)
                ]
            )
        )
    return steps


def reuse(maker: Maker, sizes: Sizes) -> list[Step]:
    """Threes of steps: requests write prefixes; others hit them; yet others take the prefixes' blocks."""
    each = sizes.hit // maker.block_size
    spans = [list(range(at * each, (at + 1) * each)) for at in range(sizes.requests)]
    first, own = sizes.requests * each, -(-sizes.tokens // maker.block_size)
    tails = [list(range(first + at * own, first + (at + 1) * own)) for at in range(sizes.requests)]
    steps = []
    for _ in range(sizes.steps):
        writers = [maker.new(span, 0, sizes.hit) for span in spans]
        steps.append(maker.step(writers))
        readers = [
            maker.new([*writer.blocks, *tail], sizes.hit, sizes.tokens, source=writer)
            for writer, tail in zip(writers, tails, strict=True)
        ]
        steps.append(maker.step(readers))
        steps.append(maker.step([maker.new(span, 0, sizes.hit) for span in spans]))
    return steps


_QUICK_DECODE = Sizes(4, 1, 20, num_blocks=64)
_HITS = Sizes(8, 64, 80, hit=1024), Sizes(2, 16, 4, hit=32, num_blocks=64)

WORKLOADS = {
    workload.letter: workload
    for workload in (
        Workload("a", "decode, 64 x 1, two keys", 3.0, _BOTH, decode, Sizes(64, 1, 200), _QUICK_DECODE),
        Workload("f", "decode, 512 x 1, two keys", 3.0, _BOTH, decode, Sizes(512, 1, 100), _QUICK_DECODE),
        Workload("b", "prefill, 2,048", 1.1, _HIDDEN, prefill, Sizes(1, 2048, 64), Sizes(1, 64, 8, num_blocks=64)),
        Workload("c", "8 hits of 1,024 and 64 new", 2.5, _HIDDEN, hits, *_HITS),
        Workload("C", "the same, a forward of 30 ms in between", 1.0, _HIDDEN, hits, *_HITS, forward_s=0.03),
        Workload(
            "d", "deferred decode, 64 x 1, per step", 10.0, _CODES, decode,
            Sizes(64, 1, 256), _QUICK_DECODE, frozenset(_CODES), finish_goal=8.0,
        ),
        Workload(
            "e", "reuse of 4 x 1,024 slots under pending reads", 1.5, _HIDDEN, reuse,
            Sizes(4, 16, 16, hit=1024), Sizes(2, 16, 2, hit=32, num_blocks=64),
        ),
    )
}  # fmt: skip
