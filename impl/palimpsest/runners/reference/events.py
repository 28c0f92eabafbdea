"""A sink that counts the protocol's events, and passes them on to a file where one is asked for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from palimpsest.trace import NdjsonSink


class CountingSink:
    """Counts events; writes them to `path` unless it is None."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = None if path is None else NdjsonSink(path)
        self._numbers = itertools.count(1)
        self.count = 0

    def begin(self, config: dict[str, Any]) -> None:
        """Pass the header on."""
        if self._file is not None:
            self._file.begin(config)

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Count one event, from any thread."""
        self.count = max(self.count, next(self._numbers))
        if self._file is not None:
            self._file.emit(action, args, post)

    def close(self) -> None:
        """Finish the file; the count is exact from here on."""
        self.count = next(self._numbers) - 1
        if self._file is not None:
            self._file.close()
