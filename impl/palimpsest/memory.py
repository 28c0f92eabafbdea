"""Host memory: what there is, what a pinned allocation takes, and the one place that allocates it."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    (_CGROUP / "memory.max", _CGROUP / "memory.current"),
    (_CGROUP / "memory" / "memory.limit_in_bytes", _CGROUP / "memory" / "memory.usage_in_bytes"),
)


def available_host_bytes() -> int:
    """Bytes that can still be allocated: what the machine has, or its control group if that has less."""
    available = int(psutil.virtual_memory().available)
    for limit, usage in _LIMITS:
        most, used = _read_bytes(limit), _read_bytes(usage)
        if most is not None and used is not None:
            available = min(available, max(0, most - used))
    return available


def _read_bytes(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def pinned_bytes(nbytes: int) -> int:
    """Bytes that torch's pinned allocator takes for a request: the next power of two.

    Source: `CachingHostAllocator` rounds a request up to a power of two
    (https://github.com/pytorch/pytorch/issues/95823).
    """
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0


def host_bytes(nbytes: int, *, pinned: bool) -> int:
    """Physical bytes of a host allocation of `nbytes`."""
    return pinned_bytes(nbytes) if pinned else nbytes


def allocate_host(shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    """An uninitialised host tensor, pinned for device copies where asked: the seam for pinned memory."""
    return torch.empty(shape, dtype=dtype, pin_memory=pinned)


def format_gib(nbytes: int) -> str:
    """`nbytes` as text in GiB."""
    return f"{nbytes / (1 << 30):.2f} GiB"
