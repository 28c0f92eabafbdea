"""Sinks of trace events: memory, or a file of newline-delimited JSON. No sink is `None`.

An emitter tests one attribute (`if self._trace is not None`) and calls `emit` with fresh arrays while it
holds the lock that guards what they describe. The sink owns what it is given.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from palimpsest.trace.events import Event, event_line, header_line

#: reads the identity out of the rows of a key: an integer array with a line per row, or None if untagged
Tag = Callable[[str, torch.Tensor], "np.ndarray | None"]


class Sink(Protocol):
    """Takes events; `emit` is called under the lock that the action holds."""

    tag: Tag | None

    def begin(self, config: dict[str, Any]) -> None: ...
    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def _thread_name() -> str:
    return threading.current_thread().name


class MemorySink:
    """Keeps the events of one manager in `events`, in the order of their sequence numbers."""

    def __init__(self, tag: Tag | None = None) -> None:
        self.tag = tag
        self.config: dict[str, Any] = {}
        self.events: list[Event] = []
        self._seq = itertools.count(1)

    def begin(self, config: dict[str, Any]) -> None:
        """Remember what the manager was made with."""
        self.config = config

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Append one event. Sequence number and append are each atomic, not both together."""
        self.events.append(Event(next(self._seq), _thread_name(), action, args, post))

    def close(self) -> None:
        """Bring the events into the order of their sequence numbers."""
        self.events.sort(key=lambda event: event.seq)

    def lines(self) -> list[str]:
        """The trace as NDJSON lines, each with its end, header first."""
        self.close()
        return [line.decode() for line in (header_line(self.config), *map(event_line, self.events))]


class NdjsonSink:
    """Writes the events of one manager to `path`; formatting and writing happen on a thread of its own.

    `close` writes what is left and joins the thread. An error while writing is raised by `close`.
    """

    def __init__(self, path: str | Path, tag: Tag | None = None) -> None:
        self.path, self.tag = Path(path), tag
        self.count, self._begun = 0, False
        self._seq = itertools.count(1)
        self._queue: queue.SimpleQueue[Callable[[], bytes] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._drain, name="palimpsest-trace", daemon=True)
        self._thread.start()

    def begin(self, config: dict[str, Any]) -> None:
        """Write the header line; those who share the sink have one."""
        if not self._begun:
            self._begun = True
            self._queue.put(lambda: header_line(config))

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Hand one event to the writing thread."""
        event = Event(next(self._seq), _thread_name(), action, args, post)
        self._queue.put(lambda: event_line(event))

    def close(self) -> None:
        """Finish the file; idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _drain(self) -> None:
        try:
            with self.path.open("wb") as out:
                while (line := self._queue.get()) is not None:
                    out.write(line())
                    self.count += 1
                    # the interpreter goes to who waits for it after each event, not after the switch interval
                    time.sleep(0)
        except BaseException as error:  # reported by close(), on the thread that asked for the trace
            self._error = error
            while self._queue.get() is not None:
                pass
