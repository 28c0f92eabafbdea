"""A sink that counts the protocol's events, and passes them on to a file where one is asked for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from palimpsest.runners.reference.identity import decode, read_tags
from palimpsest.trace import NdjsonSink
from palimpsest.trace.sinks import Tag


def event_tag(_key: str, rows: torch.Tensor) -> npt.NDArray[np.int64]:
    """The identities of rows as an event tells them: a line of generation, position, key number per row."""
    return decode(read_tags(rows))


class CountingSink:
    """Counts events; writes them to `path` unless it is None."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = None if path is None else NdjsonSink(path)
        #: events of delivered rows carry their identities, where somebody will read them
        self.tag: Tag | None = None if path is None else event_tag
        self._lock = threading.Lock()
        self.count = 0

    def begin(self, config: dict[str, Any]) -> None:
        """Pass the header on."""
        if self._file is not None:
            self._file.begin(config)

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Count one event, from any thread."""
        with self._lock:
            self.count += 1
        if self._file is not None:
            self._file.emit(action, args, post)

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._file.close()
