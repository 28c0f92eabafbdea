"""Batched copies between addresses, on the device's current stream or, without a device, at once.

On CUDA one call of `cuMemcpyBatchAsync` where the extra `[cuda]` (cuda-bindings) is installed and the driver has
it; otherwise one `cudaMemcpyAsync` for each piece.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from palimpsest.errors import CopyFailedError
from palimpsest.host_mirror.streams import current_stream, has_device

_COPY_DEFAULT = 4  # cudaMemcpyDefault: the direction follows from the addresses

BatchedCopy = Callable[[list[int], list[int], list[int], int], None]


def swap_blocks_batch(src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor) -> None:
    """Copy `sizes[i]` bytes from address `src[i]` to `dst[i]`, for all i; int64 tensors on the host.

    Pieces must not depend on one another. On a device the copies are queued on the current stream and the arrays
    are not read after the return. Raises `CopyFailedError` with the driver's code.
    """
    if not src.numel():
        return
    if not has_device():
        copy_on_host(src, dst, sizes)
        return
    batched = batched_copy()
    stream = current_stream().cuda_stream
    pieces = src.tolist(), dst.tolist(), sizes.tolist()
    if batched is not None and stream:  # the legacy default stream takes no batches
        batched(*pieces, stream)
    else:
        _copy_each(*pieces, stream)


def copy_on_host(src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor) -> None:
    """The same between host addresses, at once; other threads run meanwhile."""
    for source, destination, nbytes in zip(src.tolist(), dst.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(destination, source, nbytes)


@functools.cache
def batched_copy() -> BatchedCopy | None:
    """The driver's batched copy, or None where cuda-bindings is not installed or the driver is too old."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415  # an optional extra
    except ImportError:
        return None
    if not hasattr(driver, "cuMemcpyBatchAsync") or _driver_version(driver) < 12080:
        return None
    attributes = driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    attributes.flags = int(driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)

    def copy(src: list[int], dst: list[int], sizes: list[int], stream: int) -> None:
        pointer = driver.CUdeviceptr
        code, *_ = driver.cuMemcpyBatchAsync(
            [pointer(address) for address in dst],
            [pointer(address) for address in src],
            sizes,
            len(sizes),
            [attributes],
            [0],
            1,
            driver.CUstream(stream),
        )
        _raise_for("cuMemcpyBatchAsync", int(code))

    return copy


def _driver_version(driver: Any) -> int:
    code, version = driver.cuDriverGetVersion()
    return int(version) if int(code) == 0 else 0


def _copy_each(src: list[int], dst: list[int], sizes: list[int], stream: int) -> None:
    copy = _runtime().cudaMemcpyAsync
    for source, destination, nbytes in zip(src, dst, sizes, strict=True):
        _raise_for("cudaMemcpyAsync", copy(destination, source, nbytes, _COPY_DEFAULT, stream))


@functools.cache
def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch has loaded."""
    major = str(torch.version.cuda).partition(".")[0]
    library = ctypes.CDLL(f"libcudart.so.{major}")
    pointer = ctypes.c_void_p
    library.cudaMemcpyAsync.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, pointer]
    return library


def _raise_for(call: str, code: int) -> None:
    if code:
        raise CopyFailedError(f"{call} failed with code {code}")
