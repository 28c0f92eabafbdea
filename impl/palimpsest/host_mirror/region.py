"""One mapping of host memory that the ranks of a node share.

All ranks construct it with the same `engine_id`. Whoever gets the file's lock is its creator: it checks memory,
gives the file its size and touches the pages; the others map what it made. The file's name goes as soon as all
have mapped it, so that nothing is left behind however the ranks end; a file left by a crash before that has no
lock, and is made anew.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from palimpsest.errors import BadMirrorInputError, HostMirrorError
from palimpsest.page_locked import unregister

_SHARED_MEMORY = Path("/dev/shm")  # where POSIX shared memory lies on Linux


class SharedHostRegion:
    """`num_chunks * kv_bytes_per_chunk` bytes of shared host memory, `base_tensor` (int8).

    `rank`: the chunk that is this rank's own; 0 where all ranks share one. `cpu_page_size`: bytes that the views of
    a chunk need together. `barrier` is called once, when the creator has made the memory and again when all have
    mapped it. `creator_memory_check(nbytes)` may raise. Ownership: `cleanup` unregisters what stands in
    `pinned_addresses` and drops the mapping.
    """

    BLOCK_SIZE_ALIGNMENT = mmap.PAGESIZE

    def __init__(
        self,
        *,
        engine_id: str,
        num_chunks: int,
        rank: int,
        kv_bytes_per_chunk: int,
        cpu_page_size: int,
        barrier: Callable[[], None],
        creator_memory_check: Callable[[int], None],
        populate_only_on_creator: bool,
    ) -> None:
        if not 0 <= rank < num_chunks or cpu_page_size > kv_bytes_per_chunk:
            raise BadMirrorInputError(
                f"rank {rank} of {num_chunks} chunks, views of {cpu_page_size} bytes in {kv_bytes_per_chunk}"
            )
        self.total_size_bytes = num_chunks * kv_bytes_per_chunk
        self.is_pinned = False
        #: addresses that were registered, in that order
        self.pinned_addresses: list[int] = []
        self._num_chunks, self._rank, self._chunk_bytes = num_chunks, rank, kv_bytes_per_chunk
        self._offset = 0
        self.path = _path_of(engine_id)
        file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            self.is_creator = _try_lock(file)
            self._map(file, barrier, creator_memory_check, populate_only_on_creator)
        finally:
            os.close(file)

    def _map(
        self, file: int, barrier: Callable[[], None], check: Callable[[int], None], populate_only_on_creator: bool
    ) -> None:
        try:
            if self.is_creator:
                check(self.total_size_bytes)
                os.ftruncate(file, 0)
                os.ftruncate(file, self._file_bytes)
            barrier()
            size = os.fstat(file).st_size
            if size != self._file_bytes:
                raise HostMirrorError(f"{self.path} has {size} bytes, and {self._file_bytes} were agreed on")
            mapping = mmap.mmap(file, self._file_bytes)
            self.base_tensor: torch.Tensor = torch.frombuffer(mapping, dtype=torch.int8)[: self.total_size_bytes]
            if self.is_creator:
                self.base_tensor.zero_()
            elif not populate_only_on_creator:
                self.base_tensor[:: mmap.PAGESIZE].sum()
            barrier()
        finally:
            if self.is_creator:
                self.path.unlink(missing_ok=True)

    @property
    def _file_bytes(self) -> int:
        return max(1, -(-self.total_size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE

    def create_next_canonical_view(self, size: int) -> torch.Tensor:
        """The next `size` bytes of each chunk, [num_chunks, size]."""
        if self._offset + size > self._chunk_bytes:
            left = self._chunk_bytes - self._offset
            raise BadMirrorInputError(f"a view of {size} bytes, and {left} of {self._chunk_bytes} are left in a chunk")
        view = self.base_tensor.as_strided((self._num_chunks, size), (self._chunk_bytes, 1), self._offset)
        self._offset += size
        return view

    def cleanup(self) -> None:
        """Unregister what was registered and drop the mapping; idempotent. Views that are still held keep it mapped."""
        addresses, self.pinned_addresses = self.pinned_addresses, []
        self.is_pinned = False
        self.base_tensor = torch.empty(0, dtype=torch.int8)
        unregister(addresses)


def _path_of(engine_id: str) -> Path:
    if not re.fullmatch(r"[\w.-]+", engine_id):
        raise BadMirrorInputError(f"engine_id is {engine_id!r}; letters, digits, '_', '.' and '-' can be in it")
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    return folder / f"palimpsest-{os.getuid()}-{engine_id}"


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
