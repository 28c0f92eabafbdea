"""Device memory: a snapshot of it, and how much of it the engine may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import psutil
import torch

from palimpsest.memory import format_gib


@dataclass
class MemorySnapshot:
    """Free and total bytes of a device at one moment; of the host for `device="cpu"`.

    Measured on construction unless `auto_measure` is false, when the bytes given stand.
    """

    free_memory: int = 0
    total_memory: int = 0
    device: str | torch.device = "cpu"
    auto_measure: bool = True

    def __post_init__(self) -> None:
        if self.auto_measure:
            self.measure()

    def measure(self) -> None:
        """Take the numbers of the device as they are now."""
        device = torch.device(self.device)
        if device.type == "cpu":
            host = psutil.virtual_memory()
            self.free_memory, self.total_memory = int(host.available), int(host.total)
        else:
            self.free_memory, self.total_memory = torch.cuda.mem_get_info(device)


class CacheSettings(Protocol):
    """What `request_memory` reads of an engine's settings."""

    @property
    def gpu_memory_utilization(self) -> float: ...


def request_memory(snapshot: MemorySnapshot, cache_config: CacheSettings, external_bytes: int = 0) -> int:
    """The bytes of the device that the engine may take: its share of all memory, less what is held outside.

    `external_bytes` are weights that another process put on the device for this engine: they count against the
    engine's share, and they are not free any more. Raises `ValueError` when the share cannot be had.
    """
    share = cache_config.gpu_memory_utilization
    if not 0.0 < share <= 1.0:
        raise ValueError(f"gpu_memory_utilization is {share}, and must be above 0 and at most 1")
    if external_bytes < 0:
        raise ValueError(f"external_bytes is {external_bytes}, and must not be negative")
    budget = math.ceil(snapshot.total_memory * share)
    engine = budget - external_bytes
    if external_bytes and engine <= 0:
        raise ValueError(
            f"weights held outside of the engine ({format_gib(external_bytes)}) exceed the desired share of "
            f"{snapshot.device}'s memory: {share} of it, {format_gib(budget)}"
        )
    if snapshot.free_memory < engine:
        raise ValueError(_too_little(snapshot, share, budget, external_bytes))
    return engine


def _too_little(snapshot: MemorySnapshot, share: float, budget: int, external_bytes: int) -> str:
    free = f"{snapshot.device} has {format_gib(snapshot.free_memory)} free of {format_gib(snapshot.total_memory)}"
    if not external_bytes:
        return f"{free}, less than desired: {share} of it, {format_gib(budget)}; free some or lower the share"
    return (
        f"{free}, less than the engine's budget of {format_gib(budget - external_bytes)}: {share} of the device, "
        f"{format_gib(budget)}, less {format_gib(external_bytes)} of weights held outside of the engine"
    )
