"""What a run would otherwise take from the process and the machine around it."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from palimpsest.prefix_cache import reads
from palimpsest.prefix_cache import sizing as sizing_module

_AMPLE_BYTES = 1 << 40
_sizing: Any = sizing_module  # whose imported function is replaced


@contextmanager
def like_a_new_process() -> Iterator[None]:
    """Inside, reads are numbered from one, since their numbers are part of what runs are compared by, and the machine's
    free memory, which is not part of any scenario, is ample. Warnings of each of thousands of runs are not logged."""
    before = reads._IDS, _sizing.available_host_bytes
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    reads._IDS = itertools.count(1)
    _sizing.available_host_bytes = lambda: _AMPLE_BYTES
    try:
        yield
    finally:
        reads._IDS, _sizing.available_host_bytes = before
        logging.disable(disabled)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Inside, the process keeps to one core: threads that run one at a time hand over faster there."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    _keep_to(os.getpid())
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def keep_to_one_core(taken: Any) -> None:
    """Keep a worker process to a core of its own, as far as there are enough; `taken` counts the workers."""
    with taken.get_lock():
        number, taken.value = taken.value, taken.value + 1
    if hasattr(os, "sched_setaffinity"):
        _keep_to(number)


def _keep_to(number: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
