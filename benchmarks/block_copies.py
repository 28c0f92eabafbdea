"""Copies of KV blocks beside a plain gather and scatter of the same bytes, in one run on the host.

    python benchmarks/block_copies.py

Each case has so many caches of so many bytes a block; the copies go to other blocks than they come from, or along a
chain in which each block but the first is written and each but the last read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch

from palimpsest.kv_cache import KVCacheBlockCopy, copy_kv_cache_blocks_inplace

NUM_BLOCKS = 512
REPEATS, AT_LEAST_S = 7, 0.02


def caches(count: int, block_bytes: int) -> list[torch.Tensor]:
    """Caches with storages of their own."""
    return [torch.zeros(NUM_BLOCKS, block_bytes // 2, dtype=torch.bfloat16) for _ in range(count)]


def pairs(count: int, *, chain: bool) -> list[KVCacheBlockCopy]:
    """`count` copies."""
    far = 1 if chain else NUM_BLOCKS // 2
    return [KVCacheBlockCopy(block, block + far) for block in range(count)]


def plain(of: list[torch.Tensor], copies: list[KVCacheBlockCopy]) -> None:
    """A gather and a scatter for each cache."""
    sources, destinations = torch.tensor(copies).unbind(1)
    taken = [cache.index_select(0, sources) for cache in of]
    for cache, rows in zip(of, taken, strict=True):
        cache.index_copy_(0, destinations, rows)


def seconds(work: Callable[[], None]) -> float:
    """Of one call, over as many as take `AT_LEAST_S`."""
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < AT_LEAST_S:
        work()
        calls += 1
    return spent / calls


def measured(of: list[torch.Tensor], copies: list[KVCacheBlockCopy]) -> list[float]:
    """Microseconds of the plain way and of ours: the best of `REPEATS`, taken in turns."""
    works = (lambda: plain(of, copies)), (lambda: copy_kv_cache_blocks_inplace(of, NUM_BLOCKS, copies))
    return [
        min(times) * 1e6 for times in zip(*([seconds(work) for work in works] for _ in range(REPEATS)), strict=True)
    ]


def main() -> None:
    """Print a line for each case."""
    torch.set_num_threads(1)
    print("caches  bytes a block  copies  chain   plain us    ours us  ratio")
    for count, block_bytes, copies, chain in itertools.product((1, 60), (4608, 73728), (1, 8, 64), (False, True)):
        if count * block_bytes * NUM_BLOCKS < 2**31:
            gathered, ours = measured(caches(count, block_bytes), pairs(copies, chain=chain))
            case = f"{count:6} {block_bytes:14,} {copies:7} {chain!s:>6}"
            print(f"{case} {gathered:10.1f} {ours:10.1f} {ours / gathered:6.2f}")


if __name__ == "__main__":
    main()
