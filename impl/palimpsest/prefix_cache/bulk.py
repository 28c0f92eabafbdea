"""Large copies on the host, shared out among plain threads.

One thread copies at a fraction of what the memory gives, and torch's own teams of threads are one per calling
thread: two that copy at once take more threads than there are cores. NumPy's copies let go of the interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress

import numpy as np

from palimpsest.sync import Sync

#: bytes from which a copy is shared out, and of a piece of it
_LARGE_BYTES, _PIECE_BYTES = 4 << 20, 1 << 20
_MOST_THREADS = 8

#: rows to overwrite and the rows that they get, of one shape
Copy = tuple[np.ndarray, np.ndarray]


class BulkCopier:
    """Copies rows with up to `threads` threads, the caller among them; by default a half of the usable cores,
    eight at most. The others are started by the first large copy."""

    def __init__(self, sync: Sync, threads: int | None = None) -> None:
        self._sync = sync
        self._threads = max(1, min(_MOST_THREADS, _usable_cores() // 2)) if threads is None else threads
        self._helpers: list[Executor] | None = None
        self._closed = False

    def takes(self, nbytes: int) -> bool:
        """Whether a copy of so many bytes is shared out."""
        return self._threads > 1 and nbytes >= _LARGE_BYTES and not self._closed

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make all of the copies, whose targets do not overlap; they are made when this returns."""
        pieces = [piece for target, source in copies for piece in _pieces(target, source)]
        shares = [pieces[first :: self._threads] for first in range(self._threads)]
        futures = self._submit(shares[1:])
        _copy(shares[0])
        for future, share in zip(futures, shares[1:], strict=True):
            if future is None:
                _copy(share)
            else:
                future.result()

    def close(self) -> None:
        """End the threads; later copies are made by their callers alone."""
        self._closed = True
        for helper in self._helpers or ():
            helper.shutdown(wait=True)

    def _submit(self, shares: Sequence[list[Copy]]) -> list[Future[None] | None]:
        if self._helpers is None:
            self._helpers = [self._sync.executor("palimpsest-copier") for _ in shares]
        futures: list[Future[None] | None] = [None] * len(shares)
        with suppress(RuntimeError):  # closed meanwhile: the caller makes the rest
            for number, (helper, share) in enumerate(zip(self._helpers, shares, strict=True)):
                futures[number] = helper.submit(_copy, share)
        return futures


def _copy(share: Iterable[Copy]) -> None:
    for target, source in share:
        np.copyto(target, source)


def _pieces(target: np.ndarray, source: np.ndarray) -> Iterable[Copy]:
    rows = max(1, _PIECE_BYTES // max(1, source[:1].nbytes))
    return [(target[first : first + rows], source[first : first + rows]) for first in range(0, len(source), rows)]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
