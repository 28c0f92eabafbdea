"""Host pools: chunks of a registration, regions that ranks share, what is undone when something fails."""

from __future__ import annotations

import gc
import mmap
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import BadMirrorInputError, HostMirrorError, HostRegistrationError, MirrorMemoryError
from palimpsest.host_mirror.host_pool import allocate_shared, release_pinned_state
from palimpsest.host_mirror.region import SharedHostRegion, _path_of
from palimpsest.host_mirror.registration import (
    check_host_memory,
    registration_ranges,
)
from palimpsest.page_locked import page_aligned_bytes, register, unregister
from tests.mirror_support import thread_ranks
from tests.support import Background

PAGE = mmap.PAGESIZE


@settings(deadline=None)
@given(
    blocks=st.integers(1, 6),
    layers=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    unit=st.sampled_from([PAGE, PAGE // 2, 24]),
    spare=st.integers(0, 2),
    most=st.integers(1, 12),
)
def test_chunks_cover_the_pool_and_end_between_blocks_at_a_page(blocks, layers, unit, spare, most):
    sizes = [blocks * units * unit for units in layers]
    stride = sum(sizes) // blocks + spare * unit
    ranges = registration_ranges(sizes, blocks, stride, max_chunk_bytes=most * PAGE)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == blocks * stride
    between, start = set(), 0
    for size in sizes:
        between |= {start + number * (size // blocks) for number in range(blocks + 1)}
        start += size
    assert all(stop in between and stop % PAGE == 0 for _, stop in ranges[:-1])
    # a chunk is over its bound only where there is no earlier place to end it
    places = sorted(place for place in between if place % PAGE == 0)
    for first, stop in ranges:
        assert stop - first <= most * PAGE or not any(first < place < stop for place in places)


def test_layers_that_do_not_fit_are_an_error():
    with pytest.raises(BadMirrorInputError, match="layer 1 has 10 bytes, no multiple of 4 blocks"):
        registration_ranges([8, 10], 4, 100)
    with pytest.raises(BadMirrorInputError, match="layers of 16 bytes in a pool of 8 bytes"):
        registration_ranges([8, 8], 4, 2)


def test_memory_is_asked_for_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("palimpsest.host_mirror.registration.available_host_bytes", lambda: 1000)
    check_host_memory(1000)
    with pytest.raises(MirrorMemoryError, match="a host pool of"):
        check_host_memory(1001)


class FakeRuntime:
    """cudart as far as registration goes; the call numbered `fails` does not succeed."""

    def __init__(self, fails=0):
        self.fails, self.calls, self.held = fails, 0, []

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802  # the driver's name
        self.calls += 1
        if self.calls == self.fails:
            return SimpleNamespace(value=712)
        self.held.append(address)
        return SimpleNamespace(value=0)

    def cudaHostUnregister(self, address):  # noqa: N802  # the driver's name
        if address not in self.held:
            return SimpleNamespace(value=713)
        self.held.remove(address)
        return SimpleNamespace(value=0)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    return fake


def shared(engine, ranks, **options):
    return allocate_shared(
        SharedHostRegion,
        engine_id=engine,
        sizes=[2 * PAGE, PAGE],
        ranges=lambda: ((0, 2 * PAGE), (2 * PAGE, 4 * PAGE)),
        pool_bytes=4 * PAGE,
        barrier=ranks.barrier,
        **{"memory_check": check_host_memory, "pin": register, **options},
    )


@pytest.mark.parametrize("fails", [1, 2])
def test_a_failed_registration_leaves_nothing_registered(driver, fails):
    driver.fails = fails
    with pytest.raises(HostRegistrationError, match="cudaHostRegister failed with code 712 for 8192 bytes"):
        shared("failed-registration", thread_ranks(1)[0])
    assert driver.held == []
    assert not _path_of("failed-registration").exists()


def test_what_was_registered_is_released_once(driver):
    region, pools = shared("released-once", thread_ranks(1)[0])
    assert len(driver.held) == 2
    assert [pool.numel() for pool in pools] == [2 * PAGE, PAGE]
    runtime = SimpleNamespace(host=pools[0])
    release_pinned_state([runtime], [], region)
    release_pinned_state([runtime], [], region)
    assert driver.held == []
    assert runtime.host is None


def test_what_cannot_be_unregistered_is_told_after_the_rest_was(driver):
    pool = page_aligned_bytes(2 * PAGE)
    register(pool[:PAGE])
    with pytest.raises(HostRegistrationError, match="code 713"):
        unregister([pool.data_ptr(), pool.data_ptr() + PAGE])
    assert driver.held == []


def test_ranks_map_the_same_memory_that_one_of_them_made():
    def rank(ranks):
        region, pools = shared("one-mapping", ranks, pin=None)
        if region.is_creator:
            pools[1].fill_(7)
        ranks.barrier()
        return region.is_creator, int(pools[1].sum()), int(pools[0].sum()), region

    calls = [Background(lambda ranks=ranks: rank(ranks)) for ranks in thread_ranks(3)]
    found = [call.result() for call in calls]
    assert sorted(creator for creator, *_ in found) == [False, False, True]
    assert {(full, empty) for _, full, empty, _ in found} == {(7 * PAGE, 0)}
    assert not _path_of("one-mapping").exists()
    for *_, region in found:
        region.cleanup()


def test_a_file_that_a_crash_left_behind_is_made_anew():
    path = _path_of("left-behind")
    path.write_bytes(b"x" * 8 * PAGE)
    region, pools = shared("left-behind", thread_ranks(1)[0], pin=None)
    assert region.is_creator
    assert not pools[0].any()
    region.cleanup()
    assert not path.exists()


def test_a_creator_without_memory_says_so_and_leaves_no_file():
    def refuse(nbytes):
        raise MirrorMemoryError(f"no {nbytes} bytes")

    with pytest.raises(MirrorMemoryError, match=f"no {4 * PAGE} bytes"):
        shared("no-memory", thread_ranks(1)[0], memory_check=refuse)
    assert not _path_of("no-memory").exists()


def test_ranks_that_disagree_on_the_size_are_told():
    first, second = thread_ranks(2, timeout_s=1.0)

    def rank(ranks, chunk):
        return SharedHostRegion(
            engine_id="two-sizes", num_chunks=1, rank=0, kv_bytes_per_chunk=chunk, cpu_page_size=PAGE,
            barrier=ranks.barrier, creator_memory_check=check_host_memory, populate_only_on_creator=True,
        )  # fmt: skip

    calls = [Background(lambda: rank(first, PAGE)), Background(lambda: rank(second, 2 * PAGE))]
    errors = []
    for call in calls:
        try:
            call.result()
        except HostMirrorError as error:
            errors.append(str(error))
    assert any("were agreed on" in error for error in errors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine_id": "../up"}, "letters, digits"),
        ({"rank": 1}, "rank 1 of 1 chunks"),
        ({"cpu_page_size": 2 * PAGE}, "views of"),
    ],
)
def test_a_region_that_makes_no_sense_is_refused(options, message):
    sizes = {"engine_id": "refused", "num_chunks": 1, "rank": 0, "kv_bytes_per_chunk": PAGE, "cpu_page_size": PAGE}
    with pytest.raises(BadMirrorInputError, match=message):
        SharedHostRegion(
            **{**sizes, **options}, barrier=lambda: None, creator_memory_check=check_host_memory,
            populate_only_on_creator=True,
        )  # fmt: skip


def test_views_end_with_the_chunk_and_keep_the_mapping_alive():
    region, (pool, _) = shared("views", thread_ranks(1)[0], pin=None)
    with pytest.raises(BadMirrorInputError, match=f"a view of {2 * PAGE} bytes, and {PAGE} of {4 * PAGE} are left"):
        region.create_next_canonical_view(2 * PAGE)
    region.cleanup()
    gc.collect()
    pool.fill_(1)
    assert int(pool.sum()) == 2 * PAGE
