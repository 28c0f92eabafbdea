"""Binding KV caches to layers, ring trackers of mixers, and the memory that an engine may take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from palimpsest.kv_cache.memory import MemorySnapshot, request_memory
from palimpsest.kv_cache.trackers import TRACKERS
from palimpsest.kv_cache.utils import bind_kv_cache, bind_kv_cache_to_layers, layer_index

GIB = 1 << 30


class Layer:
    def bind_kv_cache(self, cache):
        self.kv_cache = cache


class Mixer(Layer):
    use_replayssm = True

    def __init__(self, backend="FLASHINFER"):
        self.mamba_config = SimpleNamespace(backend=SimpleNamespace(name=backend))

    def bind_kv_cache(self, cache):
        self.kv_cache = (cache, cache)


@pytest.mark.parametrize(
    ("name", "number"),
    [("model.layers.20.attn", 20), ("draft.layers.3.mixer", 3), ("h.7.attn", 7), ("0.layers.12.experts.5", 12)],
)
def test_a_layer_name_says_its_number(name, number):
    assert layer_index(name) == number


@pytest.mark.parametrize("name", ["attn", "a.1.b.2", "layers.x"])
def test_a_name_without_one_number_is_an_error(name):
    with pytest.raises(ValueError, match=r"does not say one layer number"):
        layer_index(name)


def test_the_runner_gets_its_caches_by_layer_number_whatever_the_order_of_the_dict():
    names = ["m.layers.10.attn", "m.layers.2.attn", "m.layers.2.index", "draft.layers.2.attn"]
    caches = {name: torch.zeros(1) for name in names}
    layers, runner = {name: Layer() for name in names}, []
    bind_kv_cache(caches, layers, runner)
    assert [id(cache) for cache in runner] == [id(caches[name]) for name in (*names[1:], names[0])]
    assert all(layers[name].kv_cache is caches[name] for name in names)


def test_nothing_is_bound_when_a_cache_has_no_layer_or_the_list_is_not_empty():
    layer = Layer()
    with pytest.raises(ValueError, match=r"does not have: layers\.1"):
        bind_kv_cache_to_layers({"layers.0": torch.zeros(1), "layers.1": torch.zeros(1)}, {"layers.0": layer})
    with pytest.raises(ValueError, match=r"1 KV caches already"):
        bind_kv_cache({"layers.0": torch.zeros(1)}, {"layers.0": layer}, [torch.zeros(1)])
    assert not hasattr(layer, "kv_cache")


def mixers(count, groups, blocks=4):
    names = [f"layers.{number}.mixer" for number in range(count)]
    layers = {name: Mixer() for name in names}
    caches = {name: torch.zeros(blocks, 2) for name in reversed(names)}
    members = [SimpleNamespace(layer_names=[names[number] for number in group]) for group in groups]
    bind_kv_cache_to_layers(caches, layers, members)
    return list(layers.values())


def test_mixers_of_a_group_share_trackers_of_which_the_first_commits_and_the_last_updates():
    made = mixers(4, [[2, 0, 3]])
    for name in TRACKERS:
        shared = getattr(made[0], name)
        assert getattr(made[2], name) is shared
        assert getattr(made[3], name) is shared
        assert getattr(made[1], name) is not shared
        assert (shared.dtype, shared.tolist()) == (torch.int32, [0, 0, 0, 0])
    assert [mixer._commits_replayssm_trackers for mixer in made] == [True, True, False, False]
    assert [mixer._updates_replayssm_trackers for mixer in made] == [False, True, False, True]


def test_mixers_without_a_ring_keep_what_they_have():
    plain, other = Mixer(backend="TRITON"), Mixer()
    other.use_replayssm = False
    caches = {"layers.0": torch.zeros(2, 2), "layers.1": torch.zeros(2, 2)}
    bind_kv_cache_to_layers(caches, {"layers.0": plain, "layers.1": other})
    assert not any(hasattr(mixer, name) for mixer in (plain, other) for name in TRACKERS)


def test_mixers_of_one_group_with_other_numbers_of_blocks_are_an_error():
    layers = {"layers.0": Mixer(), "layers.1": Mixer()}
    caches = {"layers.0": torch.zeros(4, 1), "layers.1": torch.zeros(5, 1)}
    with pytest.raises(ValueError, match=r"different numbers of blocks: \[4, 5\]"):
        bind_kv_cache_to_layers(caches, layers, [SimpleNamespace(layer_names=list(layers))])


def ask(free, share=0.5, external=0):
    snapshot = MemorySnapshot(free_memory=free * GIB, total_memory=100 * GIB, device="gpu:7", auto_measure=False)
    return request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=share), external * GIB)


def test_the_engine_gets_its_share_less_what_is_held_outside():
    assert ask(free=50) == 50 * GIB
    assert ask(free=20, external=30) == 20 * GIB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"free": 49}, r"gpu:7 has 49\.00 GiB free of 100\.00 GiB, less than desired: 0\.5 of it, 50\.00 GiB"),
        ({"free": 9, "external": 50}, r"exceed the desired share"),
        ({"free": 9, "external": 40}, r"less than the engine's budget of 10\.00 GiB"),
        ({"free": 9, "share": 1.5}, r"gpu_memory_utilization is 1\.5"),
        ({"free": 9, "external": -1}, r"must not be negative"),
    ],
)
def test_a_share_that_cannot_be_had_is_told_in_numbers(options, message):
    with pytest.raises(ValueError, match=message):
        ask(**options)


def test_a_snapshot_measures_the_host_unless_told_not_to():
    measured = MemorySnapshot()
    assert 0 < measured.free_memory <= measured.total_memory
    assert MemorySnapshot(auto_measure=False).total_memory == 0
