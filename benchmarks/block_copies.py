"""Copies of KV blocks beside a plain gather and scatter of the same bytes, in one run, on the host or a device.

    python benchmarks/block_copies.py [--device cuda]

Each case has so many caches of so many bytes a block. The copies go to other blocks than they come from, in order or
scattered, or along a chain in which each block but the first is written and each but the last read. On a device a call
is queued; its time is that of many calls and one wait at their end.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable

import torch

from palimpsest.kv_cache import KVCacheBlockCopy, copy_kv_cache_blocks_inplace

NUM_BLOCKS = 512
REPEATS, AT_LEAST_S = 25, 0.008
MOST_BYTES = {"cpu": 1 << 31, "cuda": 1 << 33}
KINDS = "apart", "scattered", "chain"


def caches(count: int, block_bytes: int, device: torch.device) -> list[torch.Tensor]:
    """Caches with storages of their own, [blocks, rows, width]."""
    shape = NUM_BLOCKS, 16, block_bytes // 32
    return [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(count)]


def pairs(count: int, kind: str) -> list[KVCacheBlockCopy]:
    """`count` copies."""
    if kind == "scattered":
        blocks = random.Random(count).sample(range(NUM_BLOCKS), 2 * count)
        return [KVCacheBlockCopy(*pair) for pair in zip(blocks[:count], blocks[count:], strict=True)]
    far = 1 if kind == "chain" else NUM_BLOCKS // 2
    return [KVCacheBlockCopy(block, block + far) for block in range(count)]


def plain(of: list[torch.Tensor], copies: list[KVCacheBlockCopy]) -> None:
    """A gather and a scatter for each cache."""
    sources, destinations = torch.tensor(copies).to(of[0].device, non_blocking=True).unbind(1)
    taken = [cache.index_select(0, sources) for cache in of]
    for cache, rows in zip(of, taken, strict=True):
        cache.index_copy_(0, destinations, rows)


def seconds(work: Callable[[], None], wait: Callable[[], None]) -> float:
    """Of one call, over as many as take `AT_LEAST_S`."""
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < AT_LEAST_S:
        work()
        calls += 1
    wait()
    return (time.perf_counter() - start) / calls


def measured(of: list[torch.Tensor], copies: list[KVCacheBlockCopy]) -> list[float]:
    """Microseconds of the plain way and of ours: the best of `REPEATS`, taken in turns."""
    works = (lambda: plain(of, copies)), (lambda: copy_kv_cache_blocks_inplace(of, NUM_BLOCKS, copies))
    wait = torch.cuda.synchronize if of[0].is_cuda else (lambda: None)
    for work in works:
        work()
    wait()
    return [
        min(times) * 1e6
        for times in zip(*([seconds(work, wait) for work in works] for _ in range(REPEATS)), strict=True)
    ]


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=tuple(MOST_BYTES))
    device = torch.device(parser.parse_args().device)
    torch.set_num_threads(1)
    print("caches  bytes a block  copies       kind   plain us    ours us  ratio")
    for count, block_bytes, copies, kind in itertools.product((1, 60), (4608, 73728), (1, 2, 8, 64), KINDS):
        if count * block_bytes * NUM_BLOCKS < MOST_BYTES[device.type]:
            gathered, ours = measured(caches(count, block_bytes, device), pairs(copies, kind))
            case = f"{count:6} {block_bytes:14,} {copies:7} {kind:>10}"
            print(f"{case} {gathered:10.1f} {ours:10.1f} {ours / gathered:6.2f}", flush=True)


if __name__ == "__main__":
    main()
