"""Binding KV caches to a model's layers, and the other helpers of a runner's KV cache under one name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from palimpsest.kv_cache.copies import KVCacheBlockCopy, copy_kv_cache_blocks_inplace
from palimpsest.kv_cache.memory import MemorySnapshot, request_memory
from palimpsest.kv_cache.trackers import share_ring_trackers

__all__ = [
    "KVCacheBlockCopy",
    "MemorySnapshot",
    "bind_kv_cache",
    "bind_kv_cache_to_layers",
    "copy_kv_cache_blocks_inplace",
    "layer_index",
    "request_memory",
]


class CacheGroup(Protocol):
    """What binding reads of a KV cache group: the layers that share block tables."""

    @property
    def layer_names(self) -> Sequence[str]: ...


def layer_index(layer_name: str) -> int:
    """The number of a layer in its model: what follows `layers` in the dotted name, or the only number in it.

    Raises `ValueError` for a name that has no such number.
    """
    parts = layer_name.split(".")
    numbers = [int(part) for part in parts if part.isdecimal()]
    named = [int(after) for part, after in pairwise(parts) if part == "layers" and after.isdecimal()]
    if named:
        return named[0]
    if len(numbers) == 1:
        return numbers[0]
    raise ValueError(f"layer name {layer_name!r} does not say one layer number; numbers in it: {numbers or 'none'}")


def bind_kv_cache(
    kv_caches: Mapping[str, torch.Tensor],
    layers: Mapping[str, Any],
    runner_kv_caches: list[torch.Tensor],
    kv_cache_groups: Iterable[CacheGroup] | None = None,
    layer_kv_caches: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Give each layer its cache, and the runner all of them in the order of the layers.

    `runner_kv_caches` is empty and gets the tensors of `kv_caches`, whose lines are the scheduler's blocks, by
    layer number; layers of one number (a target's and a draft's) keep their order in `kv_caches`.
    `layer_kv_caches`: what the layers get instead, where a kernel's blocks are not the scheduler's.

    Raises `ValueError` before anything is bound: a list that is not empty, a cache without its layer or without
    a number.
    """
    if runner_kv_caches:
        raise ValueError(f"the runner has {len(runner_kv_caches)} KV caches already; binding needs an empty list")
    ordered = sorted(kv_caches, key=layer_index)
    bind_kv_cache_to_layers(kv_caches if layer_kv_caches is None else layer_kv_caches, layers, kv_cache_groups)
    runner_kv_caches.extend(kv_caches[name] for name in ordered)


def bind_kv_cache_to_layers(
    kv_caches: Mapping[str, torch.Tensor],
    layers: Mapping[str, Any],
    kv_cache_groups: Iterable[CacheGroup] | None = None,
) -> None:
    """Give each layer its cache. Mixers that keep their recent inputs in a ring share its trackers within their
    cache group; a mixer in no group has its own. Raises `ValueError` for a cache without its layer."""
    absent = [name for name in kv_caches if name not in layers]
    if absent:
        raise ValueError(f"there are caches for layers that the model does not have: {', '.join(absent)}")
    ordered = sorted(kv_caches, key=layer_index)
    for name, cache in kv_caches.items():
        layers[name].bind_kv_cache(cache)
    grouped = [list(group.layer_names) for group in kv_cache_groups or ()]
    share_ring_trackers(ordered, layers, grouped)
