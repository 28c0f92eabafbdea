"""Page-locked host memory of an exact size, for buffers that live as long as what owns them.

torch's pinned allocator rounds each buffer up to a power of two. Where the driver can lock memory that is there
already (`cudaHostRegister`, on CUDA and on ROCm), a buffer takes its own pages and not one more.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from typing import Any

import torch

from palimpsest.errors import HostRegistrationError


def can_register() -> bool:
    """Whether this torch and this machine can lock memory that was allocated before."""
    return torch.cuda.is_available()


def whole_pages(nbytes: int) -> int:
    """`nbytes` rounded up to pages of the machine, at least one."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def page_aligned_bytes(nbytes: int) -> torch.Tensor:
    """Zeroed host memory that begins at a page and has its pages for itself."""
    return _bytes_of(mmap.mmap(-1, whole_pages(nbytes)), nbytes)


def page_locked(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor in page-locked memory, which is unlocked and given back when its last view dies.

    Raises `HostRegistrationError` when the driver refuses; nothing is locked then.
    """
    memory = _Locked(-1, whole_pages(nbytes := math.prod(shape) * dtype.itemsize))
    rows = _bytes_of(memory, nbytes)
    register(rows)
    memory.address = rows.data_ptr()
    return rows.view(dtype).view(shape)


class _Locked(mmap.mmap):
    """Pages that are unlocked before they are unmapped."""

    address: int | None = None

    def __del__(self) -> None:
        if self.address is not None:
            unregister([self.address])


def _bytes_of(memory: mmap.mmap, nbytes: int) -> torch.Tensor:
    whole: torch.Tensor = torch.frombuffer(memory, dtype=torch.int8)
    return whole[:nbytes]


def register(tensor: torch.Tensor) -> None:
    """Page-lock the memory of a host tensor. Raises `HostRegistrationError`."""
    code = int(_cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0).value)
    if code:
        raise HostRegistrationError(
            f"cudaHostRegister failed with code {code} for {tensor.nbytes} bytes at {tensor.data_ptr():#x}"
        )


def unregister(addresses: Iterable[int]) -> None:
    """Undo `register`, last first. Goes on after a failure and raises `HostRegistrationError` at the end."""
    failed = []
    for address in reversed(list(addresses)):
        code = int(_cudart().cudaHostUnregister(address).value)
        if code:
            failed.append(f"{address:#x} (code {code})")
    if failed:
        raise HostRegistrationError(f"cudaHostUnregister failed for {', '.join(failed)}")


def _cudart() -> Any:
    cuda: Any = torch.cuda  # whose functions are not all typed
    return cuda.cudart()
