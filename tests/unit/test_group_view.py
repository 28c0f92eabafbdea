"""Slots of a batch against a position-by-position count, and every refused layout and configuration."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from palimpsest.errors import BadStepError, ConfigRefusedError, PrefixCacheError
from palimpsest.prefix_cache.group_view import (
    FullAttentionGroupView,
    check_prefix_cache_kv_groups,
    stage_prefix_cache_config,
)
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout

SIZE = 4


class Tables(list):
    """A block table per group, as the engine's batch has them."""


def batch(table, computed, req_ids, **layout):
    group = SimpleNamespace(block_table=SimpleNamespace(cpu=table), **layout)
    return SimpleNamespace(
        req_ids=req_ids,
        req_id_to_index={req_id: index for index, req_id in enumerate(req_ids)},
        num_computed_tokens_cpu=computed,
        block_table=Tables([group]),
    )


def count_slots(table, computed, index, scheduled):
    return [
        int(table[index][position // SIZE]) * SIZE + position % SIZE
        for position in range(computed[index], computed[index] + scheduled)
        if position // SIZE < len(table[index])
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_step_slots_are_those_of_each_position(seed, dtype):
    random = np.random.default_rng(seed)
    requests = [f"r{number}" for number in range(random.integers(1, 6))]
    table = torch.from_numpy(random.permutation(60)[: len(requests) * 5].reshape(-1, 5)).to(dtype)
    computed = random.integers(0, 20, len(requests))
    scheduled = {req_id: int(random.integers(0, 9)) for req_id in requests}
    order = list(random.permutation(requests))
    view = FullAttentionGroupView(batch(table, computed, requests), block_size=SIZE)
    want = [
        slot for req_id in order for slot in count_slots(table, computed, requests.index(req_id), scheduled[req_id])
    ]
    got = view.step_slots_cpu(order, scheduled)
    assert got.dtype == torch.int64
    assert got.tolist() == want


def test_positions_past_the_table_are_dropped():
    view = FullAttentionGroupView(batch(torch.tensor([[2, 5]]), torch.tensor([6]), ["r"]), block_size=SIZE)
    assert view.step_slots_cpu(["r"], {"r": 5}).tolist() == [22, 23]


def test_nothing_scheduled_gives_no_slots():
    view = FullAttentionGroupView(batch(torch.tensor([[2]]), torch.tensor([0]), ["r"]), block_size=SIZE)
    for scheduled in ({}, {"r": 0}):
        slots = view.step_slots_cpu(["r"], scheduled)
        assert slots.dtype == torch.int64
        assert slots.shape == (0,)


def test_slots_past_32_bits_do_not_wrap():
    table = torch.tensor([[2**30]], dtype=torch.int32)
    view = FullAttentionGroupView(batch(table, torch.tensor([0]), ["r"]), block_size=SIZE)
    assert view.step_slots_cpu(["r"], {"r": 2}).tolist() == [2**32, 2**32 + 1]


def test_the_batch_is_read_anew_at_each_call():
    rows = batch(torch.tensor([[2], [7]]), torch.tensor([0, 0]), ["a"])
    view = FullAttentionGroupView(rows, block_size=SIZE)
    assert view.batch_req_ids() == ["a"]
    rows.req_ids, rows.req_id_to_index = ["b", "a"], {"b": 0, "a": 1}
    rows.num_computed_tokens_cpu = torch.tensor([1, 2])
    assert view.batch_req_ids() == ["b", "a"]
    assert view.step_slots_cpu(["b", "a"], {"a": 1, "b": 1}).tolist() == [9, 30]


def test_the_ids_are_a_list_of_the_callers_own():
    rows = batch(torch.tensor([[2]]), torch.tensor([0]), ["a"])
    FullAttentionGroupView(rows, block_size=SIZE).batch_req_ids().clear()
    assert rows.req_ids == ["a"]


def test_a_scheduled_request_outside_the_batch_is_an_error():
    view = FullAttentionGroupView(batch(torch.tensor([[2]]), torch.tensor([0]), ["a"]), block_size=SIZE)
    with pytest.raises(BadStepError, match="request 'z' is scheduled and not in the batch"):
        view.step_slots_cpu(["a", "z"], {"a": 1, "z": 1})


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"use_hybrid_blocks": True, "blocks_per_kv_block": 2}, "kernel_block_size"),
        ({"blocks_per_kv_block": 4}, "4 kernel blocks per KV block"),
        ({"dcp_world_size": 2}, "decode context parallel"),
        ({"pcp_world_size": 2}, "prefill context parallel"),
        ({"kv_cache_block_size": 8}, "does not match"),
        ({"block_size": 8}, "does not match"),
    ],
)
def test_layouts_whose_columns_are_not_blocks_are_refused(layout, why):
    with pytest.raises(ConfigRefusedError, match=why):
        FullAttentionGroupView(batch(torch.zeros(1, 2), torch.zeros(1), ["r"], **layout), block_size=SIZE)


def test_more_than_one_block_table_is_refused():
    rows = batch(torch.zeros(1, 2), torch.zeros(1), ["r"])
    rows.block_table.block_tables = [object(), object()]
    with pytest.raises(ConfigRefusedError, match="2 block tables"):
        FullAttentionGroupView(rows, block_size=SIZE)


# ---------------------------------------------------------------- the configuration gate


class FullAttentionSpec:
    """Stands for the engine's class, which is told by its name."""


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec:
    pass


class UniformTypeKVCacheSpecs:
    def __init__(self, *specs):
        self.kv_cache_specs = {f"layer{number}": spec for number, spec in enumerate(specs)}


def group(spec=None):
    return SimpleNamespace(kv_cache_spec=FullAttentionSpec() if spec is None else spec)


def stage(*, enable=True, pooling=False, transfer=None, groups=None, draft=None, unit=None, model=None):
    return stage_prefix_cache_config(
        kv_cache_config=SimpleNamespace(num_blocks=16, kv_cache_groups=[group()] if groups is None else groups),
        cache_config=SimpleNamespace(enable_prefix_caching=enable, block_size=SIZE, prefix_match_unit=unit),
        kv_transfer_config=transfer,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_model_len=128),
        model_config=model,
        is_pooling_model=pooling,
        speculative_config=draft,
    )


@pytest.mark.parametrize("unit", [None, SIZE, 2 * SIZE])
def test_a_full_attention_engine_is_staged(unit):
    config = stage(unit=unit, transfer=SimpleNamespace(is_kv_consumer=False))
    assert (config.num_blocks, config.block_size, config.staging_capacity_tokens) == (16, SIZE, 64)


def test_the_hidden_layout_is_declared_where_the_model_tells_it():
    model = SimpleNamespace(dtype=torch.bfloat16, get_hidden_size=lambda: 32)
    assert stage(model=model).layouts == {HIDDEN_KEY: KeyLayout(torch.bfloat16, (32,))}


def test_an_engine_without_use_for_the_cache_is_never_refused():
    unfit = {"transfer": SimpleNamespace(is_kv_consumer=True), "draft": object(), "groups": (), "unit": 1}
    assert stage(enable=False, **unfit) is None
    assert stage(pooling=True, **unfit) is None


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        ({"transfer": SimpleNamespace(is_kv_consumer=True)}, "KV connector"),
        ({"draft": SimpleNamespace(method="ngram")}, "speculative decoding"),
        ({"unit": 2}, "block-aligned"),
        ({"unit": SIZE + 2}, "block-aligned"),
    ],
)
def test_unfit_engines_are_refused_before_their_groups_are_looked_at(unfit, why):
    with pytest.raises(ConfigRefusedError, match=why):
        stage(groups=(), **unfit)


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [group(), group()],
        [group(SlidingWindowSpec())],
        [group(UniformTypeKVCacheSpecs(FullAttentionSpec(), SlidingWindowSpec()))],
        [object()],
    ],
)
def test_anything_but_one_full_attention_group_is_refused(groups):
    with pytest.raises(PrefixCacheError, match="single full-attention"):
        check_prefix_cache_kv_groups(groups)
    with pytest.raises(PrefixCacheError, match="single full-attention"):
        stage(groups=groups)


@pytest.mark.parametrize("spec", [FullAttentionSpec(), MLAAttentionSpec(), UniformTypeKVCacheSpecs(MLAAttentionSpec())])
def test_one_group_of_full_attention_is_fine(spec):
    check_prefix_cache_kv_groups([group(spec)])
