"""The host mirror with copy streams, page-locked memory and copies that land late."""

from __future__ import annotations

import pytest
import torch

from palimpsest.host_mirror import (
    ops,
)
from palimpsest.host_mirror.runtime import allocate_pinned_host_pool, release_pinned_state
from palimpsest.kv_cache import KVCacheBlockCopy, copy_kv_cache_blocks_inplace
from palimpsest.runners.sparse import SparseRequest, SparseRunner, SparseSettings
from tests.mirror_support import Pages, Steps, rows, traced_mirrors

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA accelerator"),
]


def requests() -> list[SparseRequest]:
    chance = torch.Generator().manual_seed(5)
    prompts = [tuple(torch.randint(97, (8 + 3 * n,), generator=chance).tolist()) for n in range(6)]
    served = [
        SparseRequest(f"r{n}", tokens, 14, arrival=1 + n, imported=6 * (n == 3), preempted_at=(13,) * (n % 2))
        for n, tokens in enumerate(prompts)
    ]
    return [*served, SparseRequest("late", prompts[0], 4, arrival=60)]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "pages"])
@pytest.mark.parametrize("draft_tokens", [0, 2])
def test_every_host_row_is_the_devices_row_after_each_step(eager, draft_tokens):
    settings = SparseSettings(device="cuda", eager=eager, draft_tokens=draft_tokens, num_resident_blocks=8)
    report = SparseRunner(requests(), settings).run()
    assert report.verdict.faults == []
    counts = report.counts
    assert min(counts.preemptions, counts.imports, counts.restores, counts.spills, counts.idle_steps) > 0
    assert counts.acknowledged == counts.transfers + counts.restores
    assert report.hot_misses > 0


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "pages"])
@pytest.mark.parametrize("draft_tokens", [0, 2])
def test_the_trace_of_a_run_with_copy_streams_is_accepted(eager, draft_tokens):
    settings = SparseSettings(device="cuda", eager=eager, draft_tokens=draft_tokens, num_resident_blocks=8)
    with traced_mirrors("cuda") as traces:
        assert SparseRunner(requests(), settings).run().verdict.faults == []
    (verdict,) = traces.verdicts()
    assert verdict.ok, str(verdict)
    assert verdict.accepted > 200
    assert verdict.actions.keys() >= {"start_transfers", "write", "select", "import_rows", "shutdown"}


def test_a_pool_registered_in_chunks_is_copied_to_across_its_seams_and_released():
    owner = Pages(0, [62, 63, 64, 65], [2, 3, 4, 5])
    steps = Steps(device="cuda", draft=False, draft_tokens=0, max_chunk_bytes=1, num_host_blocks=1024)
    with steps:
        worker = steps.mirror.worker
        assert len(worker.pinned_host_pools) > 1
        steps.start(mirrors={"r": owner.mirrors(range(16))})
        for layer in (0, 1):
            assert steps.mirror.host[layer].shape[0] == 4096
        steps.mirror.begin_forward(steps.batch(owner, range(16), deferred=False))
        for layer in (0, 1):
            steps.mirror.write(layer, rows(1, range(16), layer, 1).cuda())
        steps.mirror.finish_forward()
        steps.mirror.settle()
        for layer in (0, 1):
            assert torch.equal(steps.host(layer, owner, range(16)), rows(1, range(16), layer, 1))
    pool, registered = allocate_pinned_host_pool(1 << 20)  # could not be registered twice
    release_pinned_state([], [registered])
    assert pool.numel() == 1 << 20


@pytest.mark.parametrize("batched", [True, False], ids=["in one batch", "one by one"])
def test_copies_between_addresses_run_on_the_current_stream(batched, monkeypatch):
    if batched and ops.batched_copy() is None:
        pytest.skip("needs cuda-bindings and a driver that copies in batches")
    if not batched:
        monkeypatch.setattr(ops, "batched_copy", lambda: None)
    host, registered = allocate_pinned_host_pool(64 * 256)
    try:
        device = torch.randint(256, (64, 256), dtype=torch.uint8, device="cuda")
        order = torch.randperm(64)
        src, dst = device.data_ptr() + order * 256, host.data_ptr() + torch.arange(64) * 256
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            ops.swap_blocks_batch(src, dst, torch.full((64,), 256))
        stream.synchronize()
        assert torch.equal(host.view(torch.uint8).view(64, 256), device.cpu()[order])
        back = torch.zeros_like(device)
        with torch.cuda.stream(stream):
            ops.swap_blocks_batch(dst, back.data_ptr() + order * 256, torch.full((64,), 256))
        stream.synchronize()
        assert torch.equal(back, device)
    finally:
        release_pinned_state([], [registered])


def test_rows_that_the_next_forward_overwrites_land_as_they_were():
    """A long copy queue and a forward that rewrites the same pages at once: the stream order must hold it back."""
    owner = Pages(0, list(range(4)), [3, 0, 4, 1])
    with Steps(device="cuda", draft=False, draft_tokens=0) as steps:
        for number in range(1, 200):
            steps.start(mirrors={"r": owner.mirrors(range(16))})
            steps.mirror.begin_forward(steps.batch(owner, range(16), deferred=number % 2 == 0))
            for layer in (0, 1):
                steps.mirror.write(layer, rows(1, range(16), layer, number).cuda(non_blocking=True))
            steps.mirror.finish_forward()
            for cache in steps.mirror.resident:
                cache.fill_(-1.0)
            steps.mirror.settle()
            for layer in (0, 1):
                assert torch.equal(steps.host(layer, owner, range(16)), rows(1, range(16), layer, number))


@pytest.mark.parametrize(
    "moves",
    [
        [(3, 9)],
        [(3, 4), (4, 5)],
        [(3, 4), (4, 3)],
        [(3, 3), (8, 2), (8, 1)],
        [(block, block + 1) for block in range(20)],
        [(block, 63 - block) for block in range(30)],
    ],
    ids=["one", "chain of two", "swap", "one source", "chain", "apart"],
)
def test_block_copies_on_the_device_read_all_sources_first(moves):
    """Caches of their own, one cache under two names, and two packed in one storage beside bytes of nobody's."""
    backing = torch.randint(256, (5, 64, 16 * 48 + 8), dtype=torch.uint8, device="cuda")
    owned = [layer.clone().view(torch.int16).view(64, 16, -1) for layer in backing[:3, :, : 16 * 48].contiguous()]
    twice, packed = backing[3].clone(), backing[4].clone()
    layers = [*owned, twice, twice.view(torch.int16), packed[:, :256], packed[:, 300:500]]
    before = [layer.clone() for layer in layers]
    eight_bit = owned[0].view(torch.float8_e4m3fn)  # a type that torch does not copy by index
    given = [eight_bit, *layers[1:]]
    copy_kv_cache_blocks_inplace(given, 64, [KVCacheBlockCopy(*move) for move in moves])
    for was, layer in zip(before, layers, strict=True):
        want = was.clone()
        for source, destination in moves:
            want[destination] = was[source]
        assert torch.equal(layer, want)
    assert torch.equal(packed[:, 256:300], backing[4][:, 256:300])
    assert torch.equal(packed[:, 500:], backing[4][:, 500:])
