"""What the mirror asks of the process around it: the platform, and how the present forward is run.

A runner that replays captured graphs says so with `forward_context`; without it each layer runs from Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class GraphMode(Enum):
    """How much of a forward is a replayed graph: nothing, all but attention, everything."""

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL = "full"


@dataclass(frozen=True)
class ForwardContext:
    """How the present forward is run; the mode is told by its `name`."""

    cudagraph_runtime_mode: Any = GraphMode.NONE


_context: ContextVar[ForwardContext | None] = ContextVar("palimpsest_forward", default=None)


def get_forward_context() -> ForwardContext:
    """The context of the forward that runs now."""
    return _context.get() or ForwardContext()


@contextmanager
def forward_context(mode: Any) -> Iterator[None]:
    """While this lasts the forward is run in `mode`."""
    token = _context.set(ForwardContext(mode))
    try:
        yield
    finally:
        _context.reset(token)


class Platform:
    """The machine's accelerator."""

    def is_cuda_alike(self) -> bool:
        """Whether it is one of CUDA's or ROCm's."""
        return torch.cuda.is_available()


current_platform = Platform()
