"""Ring trackers of state-space mixers: which line of its ring each block is at, once per cache group.

A mixer that replays its recent inputs (upstream's ReplaySSM, on the FlashInfer kernels) keeps them in a ring per
block. Where the ring stands is the same for all mixers of a cache group, so that they share the trackers: the
first mixer of a forward commits what the last step accepted, the last one moves the ring on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

TRACKERS = ("_replayssm_ring_start", "_replayssm_prev_num_accepted", "_replayssm_prev_query_len")


def share_ring_trackers(ordered: Sequence[str], layers: Mapping[str, Any], groups: Iterable[Iterable[str]]) -> None:
    """Give the ring mixers among the layers named in `ordered` (in layer order, bound) fresh trackers: int32
    zeros, one per block, shared within a group. Raises `ValueError` when a group's mixers differ in blocks."""
    left = [name for name in ordered if _has_ring(layers[name])]
    for group in groups:
        members = set(group)
        _share([layers[name] for name in left if name in members])
        left = [name for name in left if name not in members]
    for name in left:
        _share([layers[name]])


def _has_ring(layer: Any) -> bool:
    if not getattr(layer, "use_replayssm", False):
        return False
    return bool(layer.mamba_config.backend.name == "FLASHINFER")


def _share(mixers: list[Any]) -> None:
    if not mixers:
        return
    blocks = {int(mixer.kv_cache[0].shape[0]) for mixer in mixers}
    if len(blocks) > 1:
        raise ValueError(f"mixers of one cache group have different numbers of blocks: {sorted(blocks)}")
    device = mixers[0].kv_cache[0].device
    trackers = {name: torch.zeros(min(blocks), dtype=torch.int32, device=device) for name in TRACKERS}
    for mixer in mixers:
        for name, tracker in trackers.items():
            setattr(mixer, name, tracker)
        mixer._commits_replayssm_trackers = mixer is mixers[0]
        mixer._updates_replayssm_trackers = mixer is mixers[-1]
