"""The flight recorder: the last events in memory, written out on an error or on demand, and replayable.

A part of a trace can only be replayed from a known state. So at a *quiet* `begin_step` (no task, no read, no hit of the
step; saved steps may be waiting for their builder) the recorder notes the specification's state, and begins a new
segment. It keeps two segments, and of one that grows too long the last events only. What it writes is replayed from the
first state behind which no event is missing; where there is none, it says so: it can be read and not replayed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palimpsest.trace.events import Event, event_line, header_line
from palimpsest.trace.sinks import Tag
from palimpsest.trace.watch import Watch

#: gives the slot table and the live requests, as the specification has them; called under the action's lock
Tables = Callable[[], dict[str, Any]]


class Segment:
    """Events in a row, and the state before the first of them; None where that is not known."""

    def __init__(self, after: int, state: dict[str, Any] | None, most: int) -> None:
        self.after, self.state = after, state
        self.events: deque[Event] = deque(maxlen=most)

    @property
    def whole(self) -> bool:
        """Whether the first event is the one after the state."""
        return self.state is not None and (not self.events or self.events[0].seq == self.after + 1)


class FlightRecorder:
    """A sink that keeps the last `events` events of one cache, at least where the cache is quiet now and then.

    The sink's one lock is held for a few assignments, and while the tables are copied at the begin of a segment.
    """

    def __init__(self, events: int) -> None:
        if events < 1:
            raise ValueError(f"events is {events}, and must be at least 1")
        self.tag: Tag | None = None
        self.config: dict[str, Any] = {}
        #: gives the tables of the cache that is recorded; None where it is not replayable
        self.tables: Tables | None = None
        self._most, self._lock, self._seq = events, threading.Lock(), 0
        self._watch = Watch()
        self._segments = deque([Segment(0, {}, events)], maxlen=2)

    def begin(self, config: dict[str, Any]) -> None:
        """Remember what the manager was made with."""
        self.config = config

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Take one event."""
        thread = threading.current_thread().name
        with self._lock:
            self._seq += 1
            segment = self._segments[-1]
            segment.events.append(Event(self._seq, thread, action, args, post))
            self._watch.take(action, args, post)
            if action == "begin_step" and 2 * len(segment.events) > self._most and self._watch.quiet(args, post):
                self._begin_segment()

    def _begin_segment(self) -> None:
        if self.tables is not None:
            state = {**self.tables(), **self._watch.state()}
            self._segments.append(Segment(self._seq, state, self._most))

    def close(self) -> None:
        """Nothing is left to be done."""

    def lines(self) -> list[bytes]:
        """What is kept, as NDJSON lines with a header."""
        with self._lock:
            segments = list(self._segments)
            events = [event for segment in segments for event in segment.events]
        first = segments[0] if all(segment.whole for segment in segments) else segments[-1]
        after = first.after if first.whole else first.events[0].seq - 1
        part = {"after": after, "state": first.state if first.whole else None}
        return [header_line(self.config, part=part), *map(event_line, events)]

    def dump(self, path: str | Path) -> Path:
        """Write what is kept to `path`; gives it."""
        path = Path(path)
        path.write_bytes(b"".join(self.lines()))
        return path
