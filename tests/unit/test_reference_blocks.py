"""The block manager of the reference runner: references, hashes, eviction, writers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from palimpsest.runners.reference.blocks import BlockManager, chain_hash, extend_hashes

SIZE = 4


def hashes(tokens: list[int]) -> list[bytes]:
    found: list[bytes] = []
    extend_hashes(found, tokens, SIZE)
    return found


@given(st.lists(st.integers(0, 5), max_size=24), st.lists(st.integers(0, 5), max_size=24))
def test_hashes_chain(one: list[int], other: list[int]) -> None:
    """Two prompts have as many hashes in common, from the front, as they have common full blocks."""
    for number, (a, b) in enumerate(zip(hashes(one), hashes(other), strict=False), 1):
        assert (a == b) == (one[: number * SIZE] == other[: number * SIZE])


def test_hashes_grow_with_the_tokens() -> None:
    found = hashes([1, 2, 3, 4, 5])
    assert found == [chain_hash(b"", [1, 2, 3, 4])]
    extend_hashes(found, [1, 2, 3, 4, 5, 6, 7, 8], SIZE)
    assert found == hashes([1, 2, 3, 4, 5, 6, 7, 8])


def test_a_freed_block_is_hit_until_it_is_reused() -> None:
    blocks = BlockManager(3, SIZE)
    held = blocks.allocate(2)
    names = hashes([1] * 8)
    for block, name in zip(held, names, strict=True):
        blocks.publish(block, name)
    blocks.free(held)
    assert blocks.match(names, 2) == held
    assert blocks.match(names, 1) == held[:1]
    blocks.allocate(1)  # the block that was never used
    assert blocks.match(names, 2) == held
    blocks.allocate(1)  # the end of the prefix goes first
    assert blocks.match(names, 2) == held[:1]
    blocks.check()


def test_a_hit_counts_its_own_free_blocks() -> None:
    blocks = BlockManager(3, SIZE)
    held = blocks.allocate(2)
    blocks.publish(held[0], b"x")
    blocks.free(held)
    assert blocks.fits([held[0]], 2)
    assert not blocks.fits([held[0]], 3)


def test_content_that_is_cached_is_not_published_again() -> None:
    blocks = BlockManager(2, SIZE)
    first, second = blocks.allocate(2)
    blocks.publish(first, b"x")
    blocks.publish(second, b"x")
    assert blocks.match([b"x"], 1) == [first]
    blocks.free([second])
    blocks.check()


def test_misuse_is_refused() -> None:
    blocks = BlockManager(2, SIZE)
    with pytest.raises(RuntimeError, match="3 blocks asked for, 2 are free"):
        blocks.allocate(3)
    with pytest.raises(RuntimeError, match="freed and nobody holds it"):
        blocks.free([0])
    with pytest.raises(RuntimeError, match="published and nobody holds it"):
        blocks.publish(0, b"x")


def test_slots_and_writers() -> None:
    blocks = BlockManager(4, SIZE)
    slots = blocks.slots([3, 1], 2, 6)
    assert slots.tolist() == [14, 15, 4, 5]
    blocks.record_write(slots, 7, 2)
    assert blocks.writers[slots].tolist() == [7] * 4
    assert (blocks.writers == 7).sum() == 4


class Blocks(RuleBasedStateMachine):
    """Random use by requests with a few different contents: a held block is never given away."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(8, SIZE)
        self.held: list[list[int]] = []

    @rule(content=st.integers(0, 3), length=st.integers(1, 4))
    def admit(self, content: int, length: int) -> None:
        names = hashes([content] * SIZE * length)
        hit = self.blocks.match(names, length - 1)
        if not self.blocks.fits(hit, length - len(hit)):
            return
        self.blocks.hold(hit)
        new = self.blocks.allocate(length - len(hit))
        assert not set(new) & {block for blocks in self.held for block in blocks}
        assert not set(new) & set(hit)
        for block, name in zip([*hit, *new], names, strict=True):
            self.blocks.publish(block, name)
        self.held.append([*hit, *new])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.blocks.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def references_are_those_of_the_requests(self) -> None:
        self.blocks.check()
        for block in range(8):
            assert self.blocks.references(block) == sum(block in blocks for blocks in self.held)


TestBlocks = Blocks.TestCase
