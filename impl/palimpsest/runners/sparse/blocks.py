"""Blocks of the sparse runner: of the host pool, with references, and of the device's page tables."""

from __future__ import annotations

from collections import deque


class HostBlocks:
    """Blocks of the host pool; the one that was freed first is reused first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = deque(range(count))
        self._references = [0] * count

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self) -> int:
        """A free block. Raises `RuntimeError` when there is none."""
        if not self._free:
            raise RuntimeError(f"all {self.count} host blocks are held")
        block = self._free.popleft()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder of a block."""
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One holder less; a block without any is free."""
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)


class ResidentBlocks:
    """Pages on the device: a block in each source."""

    def __init__(self, count: int, sources: int) -> None:
        self.count = count
        # the sources hand out their blocks in other orders, so that their slots differ
        self._free = [deque(range(count) if source % 2 == 0 else reversed(range(count))) for source in range(sources)]

    @property
    def free_count(self) -> int:
        """Pages that can still be placed."""
        return len(self._free[0])

    def allocate(self) -> tuple[int, ...]:
        """A page's block in each source. Raises `IndexError` when there is none."""
        return tuple(free.popleft() for free in self._free)

    def release(self, blocks: tuple[int, ...]) -> None:
        """Give a page's blocks back."""
        for free, block in zip(self._free, blocks, strict=True):
            free.append(block)
