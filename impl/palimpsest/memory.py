"""Host memory: how much there is, what a buffer takes of it, and what a buffer is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import ParamSpec, TypeVar

import psutil
import torch

from palimpsest.page_locked import can_register, page_locked, whole_pages

P = ParamSpec("P")
R = TypeVar("R")

_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_GIB = 1 << 30


def allocate_host(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> torch.Tensor:
    """An uninitialized tensor on the host, for a step. `pinned` asks for page-locked memory, which only a machine
    with an accelerator has; elsewhere ordinary memory is given."""
    return torch.empty(shape, dtype=dtype, pin_memory=pinned and can_pin())


def allocate_lasting(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> torch.Tensor:
    """As `allocate_host`, for a buffer that stays: page-locked at its own size where the driver can do that."""
    if pinned and can_register():
        return page_locked(shape, dtype)
    return allocate_host(shape, dtype, pinned)


def with_ordinary_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose tensors are ordinary ones also when a runner calls it in inference mode: what outlives
    the call is written later by threads that are not in that mode, and belongs to callers that may not be."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return wrapped


def can_pin() -> bool:
    """Whether this torch and this machine have page-locked memory."""
    return torch.accelerator.is_available()


def pinned_bytes(nbytes: int) -> int:
    """Physical bytes that a pinned buffer of `nbytes` takes: torch's allocator rounds up to a power of two
    (https://github.com/pytorch/pytorch/issues/95823)."""
    if nbytes < 0:
        raise ValueError(f"nbytes is {nbytes}, and must not be negative")
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def lasting_bytes(nbytes: int, pinned: bool) -> int:
    """Physical bytes of a buffer of `nbytes` from `allocate_lasting`."""
    if pinned and can_register():
        return whole_pages(nbytes)
    return pinned_bytes(nbytes) if pinned and can_pin() else nbytes


def format_gib(nbytes: int) -> str:
    """`nbytes` for a person, in GiB."""
    return f"{nbytes / _GIB:.2f} GiB" if nbytes >= _GIB // 100 else f"{nbytes / _GIB:.2g} GiB"


def available_host_bytes(proc_cgroup: Path = _PROC_CGROUP, cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Bytes that this process may still allocate: what the machine has available, or what its control
    groups (v1 or v2, each level up to the root) leave, if that is less."""
    available = int(psutil.virtual_memory().available)
    return max(0, min([available, *_cgroup_headroom(proc_cgroup, cgroup_root)]))


def _cgroup_headroom(proc_cgroup: Path, root: Path) -> Iterator[int]:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return  # no control groups on this system
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield from _headroom_of_levels(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _headroom_of_levels(root / "memory", path, *names)


def _headroom_of_levels(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Limit less usage of a group and of each group above it. Inside a container the path may name a group
    that is not mounted there; the root then is the container's own."""
    group = PurePosixPath(path.lstrip("/"))
    for level in (group, *group.parents):
        folder = root / level
        most, used = _read_number(folder / limit), _read_number(folder / usage)
        if most is not None and used is not None:
            yield most - max(0, used - _read_stat(folder / "memory.stat", reclaimable))


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _read_stat(file: Path, name: str) -> int:
    """A field of memory.stat: page cache that the kernel gives back under pressure counts as free."""
    try:
        fields = dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
        return int(fields.get(name, 0))
    except (OSError, ValueError):
        return 0
