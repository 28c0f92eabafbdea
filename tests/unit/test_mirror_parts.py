"""Smaller parts of the host mirror: hot rows, index groups, configuration, graphs, statistics."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror import HostMirror, LayerSpec
from palimpsest.host_mirror.environment import GraphMode, forward_context
from palimpsest.host_mirror.hot_rows import HotRowTable, PageTables, select
from palimpsest.host_mirror.index_group import SparseIndexGroupBuilder
from palimpsest.host_mirror.metrics import METRICS_INTERVAL
from palimpsest.host_mirror.runtime import HostCacheHandle, MirrorConfig, create_hisparse_cache_handle
from tests.mirror_support import ROWS, WIDTH, Pages, Steps, config, rows

INTS = np.int64


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 15), max_size=5), max_size=12))
def test_a_claim_keeps_what_is_there_and_takes_the_oldest_places(claims):
    """Against the time of each slot's last claim."""
    table, last = HotRowTable(2, 5), {}
    for now, slots in enumerate(claims):
        wanted, held = np.unique(np.array(slots, dtype=INTS)), set(table.slots[1].tolist()) - {-1}
        places, missing = table.claim(1, wanted)
        assert table.slots[1, places].tolist() == wanted.tolist()
        assert set(wanted[missing].tolist()) == set(wanted.tolist()) - held
        kept = set(table.slots[1].tolist()) - {-1} - set(wanted.tolist())
        gone = held - kept - set(wanted.tolist())
        assert kept <= held
        assert len(kept) + wanted.size == min(5, len(held | set(wanted.tolist())))
        assert all(last[old] <= last[young] for old in gone for young in kept)
        last.update(dict.fromkeys(wanted.tolist(), now))
    assert (table.slots[0] == -1).all()


def test_more_rows_than_places_are_an_error():
    with pytest.raises(BadMirrorInputError, match="3 rows selected at once for state 0, whose hot buffer has 2"):
        HotRowTable(1, 2).claim(0, np.array([1, 2, 3]))


def test_rows_are_forgotten_by_row_by_block_and_by_state():
    table = HotRowTable(2, 4)
    for state in (0, 1):
        table.claim(state, np.array([2, 5, 9]))
    table.forget_rows(np.array([0]), np.array([5]))
    assert sorted(table.slots[0].tolist()) == [-1, -1, 2, 9]
    assert sorted(table.slots[1].tolist()) == [-1, 2, 5, 9]
    table.forget_blocks([2], 4)
    assert sorted(table.slots[1].tolist()) == [-1, -1, 2, 5]
    table.forget_state(1)
    assert set(table.slots[1].tolist()) == {-1}


def test_a_position_without_a_block_is_an_error():
    pages = PageTables(1, 2, 1)
    pages.set_host(0, [3])
    with pytest.raises(BadMirrorInputError, match="position 5 of state 0 is selected, and lies in no block"):
        select(HotRowTable(1, 4), pages, np.array([0]), np.array([[1, 5]]), 4)


def test_resident_rows_are_read_from_their_page_and_absent_ones_are_zero():
    owner = Pages(1, [5, 2, 7], [3, 0, 4])
    with Steps() as steps:
        steps.mirror.set_request(1, owner.host)
        steps.mirror.pages.set_resident(1, 0, (owner.resident[0],))
        for layer in (0, 1):
            steps.mirror.import_rows(layer, owner.host_slots(range(8)), rows(1, range(8), layer, 0))
            steps.mirror.resident[layer][owner.resident[0]] = rows(2, range(4), layer, 0)
        steps.start()
        steps.mirror.begin_forward(steps.batch(owner, range(8, 9), deferred=True))
        steps.mirror.select(0, np.array([[3, 4]], dtype=INTS))
        want = torch.cat([rows(2, range(3, 4), 1, 0), rows(1, range(4, 5), 1, 0)])
        assert torch.equal(steps.mirror.gather(1)[0], want)
        steps.mirror.select(0, np.array([[3, -1]], dtype=INTS))
        assert torch.equal(steps.mirror.gather(0)[0, 1], torch.zeros(WIDTH))


def test_followers_join_their_leader():
    builder = SparseIndexGroupBuilder(torch.empty((2, 4), dtype=torch.int32))
    with pytest.raises(BadMirrorInputError, match="must be the leader"):
        builder.register_layer(False)
    (first, zero), (same, one), (second, _) = (builder.register_layer(leads) for leads in (True, False, True))
    assert (zero, one) == (0, 1)
    assert first is same is not second
    assert first.side_stream is second.side_stream
    assert first.logical_topk_ready is not second.logical_topk_ready


def engine(extra=None, speculative=None):
    transfer = SimpleNamespace(kv_connector_extra_config=extra)
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=3, max_num_batched_tokens=64, async_scheduling=False),
        speculative_config=None if speculative is None else SimpleNamespace(num_speculative_tokens=speculative),
        kv_transfer_config=transfer,
    )


def handle(settings, group, *, leader):
    return create_hisparse_cache_handle(
        settings, model_top_k=4, is_index_group_leader=leader, row_width=8, kv_dtype=torch.float32,
        index_group=group, device="cpu",
    )  # fmt: skip


def test_sizes_come_from_the_engines_settings():
    assert MirrorConfig.from_vllm_config(engine(speculative=2), 4) == MirrorConfig(4, 24, 12)
    assert MirrorConfig.from_vllm_config(engine({"device_buffer_size": 40}), 4) == MirrorConfig(4, 40, 4)
    with pytest.raises(BadMirrorInputError, match="device_buffer_size is 3, and a request can select 4 rows"):
        MirrorConfig.from_vllm_config(engine({"device_buffer_size": 3}), 4)
    off = engine()
    off.kv_transfer_config = None
    assert handle(off, None, leader=True) is None


def test_a_group_counts_the_bytes_of_all_its_layers():
    builder = SparseIndexGroupBuilder(torch.empty((3, 4), dtype=torch.int32))
    group, _ = builder.register_layer(True)
    with pytest.raises(BadMirrorInputError, match="before its leader's"):
        handle(engine(), group, leader=False)
    leader, follower = handle(engine(), group, leader=True), handle(engine(), group, leader=False)
    assert leader.runtime.index_group is follower.runtime.index_group
    assert leader.runtime.index_group.stats_row_bytes == 2 * 8 * 4
    assert leader.runtime.index_group.topk.max_rows == 3


@pytest.mark.parametrize(
    ("mode", "dummy", "decode", "reports"),
    [
        (GraphMode.NONE, False, False, 1),
        (GraphMode.PIECEWISE, False, False, 1),
        (GraphMode.FULL, False, False, 0),
        (GraphMode.NONE, True, False, 0),
        (GraphMode.NONE, False, True, 0),
    ],
)
def test_a_layer_reports_its_rows_where_it_runs_from_python_and_they_stand(mode, dummy, decode, reports):
    made, seen = HostCacheHandle(None), []
    made.submit_layer_mirror = lambda: seen.append(1)
    made.dummy_batch, made.decode_batch = dummy, decode
    with forward_context(mode):
        made.finish_kv_update()
    assert len(seen) == reports


def test_a_full_graph_is_mirrored_after_its_forward():
    owner = Pages(0, [5], [3])
    with Steps(draft=False, draft_tokens=0) as steps:
        steps.start(mirrors={"r": owner.mirrors(range(4))})
        with forward_context(GraphMode.FULL):
            steps.target(owner, 1, range(4))
        steps.mirror.finish_forward()
        assert torch.equal(steps.host(1, owner, range(4)), rows(1, range(4), 1, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hot_rows": 5}, "hot_rows is 5; 3 rows of a request select 2 each"),
        ({"block_rows": 0}, "every size of a host mirror is at least 1"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(options, message):
    with pytest.raises(BadMirrorInputError, match=message):
        config(**options)


def test_the_first_layer_leads():
    made = config()
    with pytest.raises(BadMirrorInputError, match="the first layer is a leader"):
        made.__class__(**{**made.__dict__, "layers": (LayerSpec("a", 4, leader=False),)})


@pytest.mark.parametrize(
    ("pages", "positions", "message"),
    [
        (Pages(0, [8], [0]), range(4), r"host slots from 32 to 35; they are 0 to 31"),
        (Pages(0, [0], [6]), range(4), r"resident slots from 24 to 27; they are 0 to 23"),
        (Pages(3, [0], [0]), range(4), r"states from 3 to 3; they are 0 to 2"),
        (Pages(0, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]), range(17), r"17 rows of 1 requests in a forward; at most 16"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_anything_is_written(pages, positions, message):
    with Steps() as steps:
        steps.start()
        with pytest.raises(BadMirrorInputError, match=message):
            steps.mirror.begin_forward(steps.batch(pages, positions, deferred=False))
        assert not any(cache.any() for cache in steps.mirror.resident)


def test_a_mirror_is_initialized_once():
    with Steps() as steps, pytest.raises(BadMirrorInputError, match="initialized already"):
        steps.mirror.initialize()
    with pytest.raises(BadMirrorInputError, match="not initialized"):
        _ = HostMirror(config()).worker


def test_statistics_are_reported_once_and_from_a_snapshot():
    owner = Pages(0, [5, 2], [3, 0])
    with Steps() as steps:
        steps.mirror.set_request(0, owner.host)
        steps.start()
        steps.mirror.begin_forward(steps.batch(owner, range(1), deferred=True))
        for _ in range(3):
            steps.mirror.select(0, np.array([[1, 2]], dtype=INTS))
        assert [steps.mirror.stats() for _ in range(METRICS_INTERVAL)] == [None] * METRICS_INTERVAL
        steps.mirror.select(0, np.array([[1, 3]], dtype=INTS))  # after the snapshot
        stats = steps.mirror.stats()
        assert stats is not None
        assert (stats.data["cache_hits"], stats.data["cache_misses"]) == ([4], [2])
        assert stats.data["host_to_device_bytes"] == [2 * 2 * WIDTH * 4]
        assert steps.mirror.stats() is None
        assert steps.mirror.worker.leader_runtimes[0].index_group.swap_stats.tolist() == [1, 1]


def test_a_warm_up_mirrors_nothing():
    owner = Pages(0, [5], [3])
    with Steps(draft=False, draft_tokens=0) as steps:
        steps.start()
        steps.target(owner, 1, range(ROWS))
        steps.mirror.finish_forward()
        steps.mirror.settle()
        assert not any(host.any() for host in steps.mirror.host)
