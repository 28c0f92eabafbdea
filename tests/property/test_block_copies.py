"""Block copies: as if all sources were read first, each byte once, nothing outside of the blocks touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.kv_cache import KVCacheBlockCopy, copy_kv_cache_blocks_inplace

BLOCKS = 6


@st.composite
def copies(draw):
    """Copies with distinct destinations; sources and destinations overlap as they like."""
    destinations = draw(st.lists(st.integers(0, BLOCKS - 1), unique=True, min_size=1))
    return [KVCacheBlockCopy(draw(st.integers(0, BLOCKS - 1)), destination) for destination in destinations]


def expected(cache, per_block, moves):
    """Block by block from a copy of everything, which is what a reader of the rule would do."""
    before, after = cache.clone(), cache.clone()
    for source, destination in moves:
        for row in range(per_block):
            after[destination * per_block + row] = before[source * per_block + row]
    return after


@settings(deadline=None)
@given(
    moves=copies(),
    per_block=st.integers(1, 3),
    width=st.integers(1, 5),
    before=st.integers(0, 3),
    gap=st.integers(0, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.float64]),
)
def test_overlapping_copies_read_all_sources_first_and_leave_padding_alone(moves, per_block, width, before, gap, dtype):
    row = per_block * width + gap
    backing = torch.arange(before + BLOCKS * row + 3, dtype=torch.float32).to(dtype)
    shape, strides = (BLOCKS, per_block, width), (row, width, 1)
    untouched = backing.clone()
    if gap:
        cache = backing.as_strided(shape, strides, before)
        want = expected(cache, 1, moves)
    else:
        cache = backing.as_strided((BLOCKS * per_block, width), (width, 1), before)
        want = expected(cache, per_block, moves)
    copy_kv_cache_blocks_inplace([cache], BLOCKS, moves)
    assert torch.equal(cache, want)
    cache.copy_(untouched.as_strided(cache.shape, cache.stride(), before))
    assert torch.equal(backing, untouched)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.complex64], ids=str)
def test_elements_that_torch_does_not_copy_by_index_are_copied_all_the_same(dtype):
    backing = (
        torch.arange(BLOCKS * 6 * 16, dtype=torch.int64)
        .div(3, rounding_mode="floor")
        .remainder(2)
        .to(torch.uint8)
        .view(BLOCKS, 6, 16)
    )
    typed = backing.view(dtype)
    gapped, dense = typed[..., ::2], backing.clone()  # by index where elements leave gaps; on a device always
    before, moves = backing.clone(), [KVCacheBlockCopy(0, 1), KVCacheBlockCopy(1, 0)]
    copy_kv_cache_blocks_inplace([gapped], BLOCKS, moves)
    copy_kv_cache_blocks_inplace([dense.view(dtype)], BLOCKS, moves)
    assert torch.equal(dense, before[[1, 0, *range(2, BLOCKS)]])
    width = dtype.itemsize
    of_gapped = before.view(BLOCKS, 6, -1, 2, width)
    want = torch.stack([of_gapped[[1, 0, *range(2, BLOCKS)]][..., 0, :], of_gapped[..., 1, :]], dim=3)
    assert torch.equal(backing, want.view(BLOCKS, 6, 16))


@settings(deadline=None)
@given(moves=copies())
def test_blocks_with_gaps_between_their_elements_leave_the_gaps_alone(moves):
    backing = torch.arange(BLOCKS * 12, dtype=torch.float32)
    cache, gaps = backing.view(BLOCKS, 6, 2)[..., 0], backing.view(BLOCKS, 6, 2)[..., 1]
    want, kept = expected(cache, 1, moves), gaps.clone()
    copy_kv_cache_blocks_inplace([cache], BLOCKS, moves)
    assert torch.equal(cache, want)
    assert torch.equal(gaps, kept)


def chain_of_views():
    storage = torch.arange(BLOCKS * 8, dtype=torch.float32)
    whole = storage.view(BLOCKS, 8)
    return {
        "the same view twice": [whole, whole],
        "other shapes and dtypes": [
            whole,
            storage.view(torch.int32).view(BLOCKS, 2, 4),
            storage.view(torch.int8).view(-1, 16),
        ],
        "a part of the blocks": [whole, whole[:, 2:5]],
        "parts that overlap": [whole[:, :5], whole[:, 3:]],
        "parts side by side": [whole[:, :3], whole[:, 3:]],
        "every second element": [whole, whole[:, ::2]],
        "kernel blocks": [whole, storage.view(BLOCKS * 4, 2)],
    }


@pytest.mark.parametrize("case", chain_of_views())
def test_bytes_that_several_views_cover_are_copied_once(case):
    """In a chain 0 -> 1 -> 2 a second pass over the same bytes would bring block 0 to block 2."""
    views = chain_of_views()[case]
    storage = torch.arange(BLOCKS * 8, dtype=torch.float32)
    start = storage.view(BLOCKS, 8)
    moves = [KVCacheBlockCopy(0, 1), KVCacheBlockCopy(1, 2), KVCacheBlockCopy(4, 3)]
    copy_kv_cache_blocks_inplace(views, BLOCKS, moves)
    after = torch.empty(0).set_(views[0].untyped_storage()).view(BLOCKS, 8)
    assert torch.equal(after, expected(start, 1, moves))


def test_layers_one_after_the_other_in_one_storage_keep_apart():
    storage = torch.arange(3 * BLOCKS * 4, dtype=torch.float32)
    layers = list(storage.view(3, BLOCKS, 4))
    moves = [KVCacheBlockCopy(5, 0), KVCacheBlockCopy(1, 2)]
    want = [expected(layer, 1, moves) for layer in layers]
    copy_kv_cache_blocks_inplace(layers, BLOCKS, moves)
    assert all(torch.equal(layer, after) for layer, after in zip(layers, want, strict=True))


def test_views_shifted_by_a_block_are_read_before_either_is_written():
    storage = torch.arange(24, dtype=torch.float32)
    first, second = storage[:20].view(5, 4), storage[4:].view(5, 4)
    before = storage.clone()
    copy_kv_cache_blocks_inplace([first, second], 5, [KVCacheBlockCopy(0, 1)])
    assert torch.equal(storage[4:8], before[0:4])
    assert torch.equal(storage[8:12], before[4:8])
    assert torch.equal(storage[12:], before[12:])


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([(0, 6)], "block 0 to 6: blocks are 0 to 5"),
        ([(-1, 2)], "block -1 to 2"),
        ([(0, 2), (1, 2)], "blocks 0 and 1 are both copied to block 2"),
    ],
)
def test_bad_copies_are_refused_before_anything_changes(moves, message):
    cache = torch.arange(BLOCKS * 2.0).view(BLOCKS, 2)
    before = cache.clone()
    with pytest.raises(ValueError, match=message):
        copy_kv_cache_blocks_inplace([cache], BLOCKS, [KVCacheBlockCopy(3, 4), *(KVCacheBlockCopy(*m) for m in moves)])
    assert torch.equal(cache, before)


def test_a_cache_that_does_not_fold_into_the_blocks_is_refused_before_anything_changes():
    good, bad = torch.arange(12.0).view(6, 2), torch.zeros(7, 2)
    before = good.clone()
    with pytest.raises(AssertionError, match="not divisible by the 6 blocks"):
        copy_kv_cache_blocks_inplace([good, bad], BLOCKS, [KVCacheBlockCopy(0, 1)])
    assert torch.equal(good, before)
