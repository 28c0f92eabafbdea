"""KV blocks with prefix hashing: allocation, hits, LRU eviction, and who wrote each slot.

A full block is hashed when it is allocated for the step that will compute it, so that a request admitted
later in the same step can hit it. A freed block keeps its hash and can be hit until it is reused; the
block that was freed first is reused first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block: of its tokens and of all that come before it."""
    return hashlib.blake2b(parent + np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=16).digest()


def extend_hashes(hashes: list[bytes], tokens: Sequence[int], block_size: int) -> None:
    """Append the hashes of the full blocks of `tokens` that `hashes` does not have yet."""
    for number in range(len(hashes), len(tokens) // block_size):
        parent = hashes[-1] if hashes else b""
        hashes.append(chain_hash(parent, tokens[number * block_size : (number + 1) * block_size]))


class BlockManager:
    """The pool of KV blocks. Raises `RuntimeError` when it is used against its rules."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._references = np.zeros(num_blocks, dtype=np.int64)
        #: free blocks, the next to be reused first
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        #: per slot, the generation that wrote it last, and in which step; -1 for none
        self.writers = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self.written_at = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self.evictions = 0

    @property
    def free_count(self) -> int:
        """Blocks that no request holds; some of them can still be hit."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many requests hold a block."""
        return int(self._references[block])

    def match(self, hashes: Sequence[bytes], limit: int) -> list[int]:
        """The cached blocks of the longest prefix of `hashes`, at most `limit` of them."""
        found: list[int] = []
        for value in hashes[:limit]:
            block = self._by_hash.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, hit: Sequence[int], new: int) -> bool:
        """Whether `new` blocks can be allocated once the `hit` blocks are held."""
        return new <= self.free_count - sum(block in self._free for block in hit)

    def hold(self, blocks: Iterable[int]) -> None:
        """Take a reference to cached blocks."""
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, least recently freed first; they can no longer be hit."""
        if count > self.free_count:
            raise RuntimeError(f"{count} blocks asked for, {self.free_count} are free")
        return [self._take_oldest() for _ in range(count)]

    def _take_oldest(self) -> int:
        block, _ = self._free.popitem(last=False)
        value = self._hash_of.pop(block, None)
        if value is not None:
            del self._by_hash[value]
            self.evictions += 1
        self._references[block] = 1
        return block

    def publish(self, block: int, value: bytes) -> None:
        """Make a block hittable; a block whose content is cached already stays unpublished."""
        if self._references[block] < 1:
            raise RuntimeError(f"block {block} is published and nobody holds it")
        if value not in self._by_hash and block not in self._hash_of:
            self._by_hash[value] = block
            self._hash_of[block] = value

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each block; the end of a prefix is reused before its beginning."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise RuntimeError(f"block {block} is freed and nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def slots(self, blocks: Sequence[int], start: int, stop: int) -> IntArray:
        """The slots of positions `start` to `stop` of a request that has `blocks`."""
        positions = np.arange(start, stop, dtype=np.int64)
        table = np.asarray(blocks, dtype=np.int64)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size

    def record_write(self, slots: IntArray, generation: int, step: int) -> None:
        """Remember who writes `slots` in `step`."""
        self.writers[slots] = generation
        self.written_at[slots] = step

    def check(self) -> None:
        """Raise `RuntimeError` unless exactly the unreferenced blocks are free and the hashes agree."""
        if {int(block) for block in np.flatnonzero(self._references == 0)} != set(self._free):
            raise RuntimeError("free blocks and references disagree")
        if {block: value for value, block in self._by_hash.items()} != self._hash_of:
            raise RuntimeError("the two hash tables disagree")
