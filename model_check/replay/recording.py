"""Recording: every prefix cache that is made gets a trace, and the in-process checker takes its events as they come."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from palimpsest.prefix_cache.interface import PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.trace import Event, MemorySink, NdjsonSink, Sink
from palimpsest.trace.sinks import Tag

from .machine import Machine
from .verdict import RejectedError, Verdict

#: what a cache may be given and is recorded all the same; whoever has a sink of another kind, or a flight recorder,
#: looks for himself
RECORDED = (type(None), MemorySink, NdjsonSink)


class Beside(MemorySink):
    """Keeps events, and hands each on to a sink that was there before."""

    def __init__(self, other: Sink) -> None:
        super().__init__(other.tag)
        self._other = other

    def begin(self, config: dict[str, Any]) -> None:
        """Remember the configuration, and hand it on."""
        super().begin(config)
        self._other.begin(config)

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Keep one event, and hand it on."""
        super().emit(action, args, post)
        self._other.emit(action, args, post)


class Recording:
    """The trace of one cache, and how far the checker has taken it."""

    def __init__(self, name: str, sink: MemorySink, cache: PrefixCacheManager) -> None:
        self.name, self.sink = name, sink
        #: how often each action was taken
        self.actions: Counter[str] = Counter()
        #: why no more of it is taken: an event was rejected
        self.rejected: Verdict | None = None
        self._cache = weakref.ref(cache)
        self._machine: Machine | None = None

    @property
    def taken(self) -> int:
        """How many events were accepted."""
        return self.actions.total()

    @property
    def ended(self) -> bool:
        """Whether the cache was shut down."""
        return self._machine is not None and bool(self._machine.s.ended)

    @property
    def gone(self) -> bool:
        """Whether no more events can come."""
        return self.ended or self.rejected is not None or self._cache() is None

    def advance(self, *, to_the_end: bool = False) -> Verdict | None:
        """Take the events that came since; `to_the_end` also checks what must hold after a cache's last one.

        Threads may still be at work: what they have numbered and not yet written down is left for the next time.
        Gives the verdict that rejects an event, once.
        """
        if self.rejected is not None:
            return None
        machine = self._machine = self._machine or Machine(self.sink.config)
        at = "the end"
        try:
            for event in self._new_events():
                at = event.action
                machine.take(event)
                self.actions[at] += 1
            at = "the end"
            if to_the_end and self.ended:
                machine.end()
        except RejectedError as error:
            seq = self.taken + (at != "the end")
            self.rejected = Verdict(self.name, len(self.sink.events), self.taken, error, seq, at, dict(self.actions))
        return self.rejected

    def before(self, count: int) -> list[Event]:
        """The event that was rejected, and the `count` before it."""
        end = self.taken + 1
        return [event for event in self.sink.events if end - count <= event.seq <= end]

    def forget_taken(self) -> None:
        """Let go of the events that were taken. To be called while no other thread is inside the cache."""
        self.sink.events[:] = [event for event in self.sink.events if event.seq > self.taken]

    def _new_events(self) -> list[Event]:
        first = self.taken + 1
        since = sorted((event for event in list(self.sink.events) if event.seq >= first), key=lambda event: event.seq)
        return [event for number, event in enumerate(since, first) if event.seq == number]


class Recorder:
    """The recordings of a session. `tag` reads the identity out of rows, where a suite tags them."""

    def __init__(self, tag: Tag | None, sample: int, seed: int) -> None:
        self._tag, self._sample, self._random = tag, sample, random.Random(seed)
        #: whose caches are recorded now; None to record none
        self.test: str | None = "outside of any test"
        self.open: list[Recording] = []
        #: of traces that were accepted, whole or in part
        self.actions: Counter[str] = Counter()
        self.traces = 0
        #: whole traces, drawn at random from all there were
        self.sampled: list[Recording] = []
        self._whole = 0
        #: caches of each test, which are told apart by their numbers
        self._made: Counter[str] = Counter()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, each new cache has a trace."""
        real = PrefixCacheManager.__init__
        PrefixCacheManager.__init__ = self._recorded(real)  # type: ignore[method-assign]  # to record is that
        try:
            yield
        finally:
            PrefixCacheManager.__init__ = real  # type: ignore[method-assign]

    def _recorded(self, real: Callable[..., None]) -> Callable[..., None]:
        def init(
            cache: PrefixCacheManager, config: PrefixCacheConfig, *args: Any, trace: Sink | None = None, **options: Any
        ) -> None:
            if self.test is None or type(trace) not in RECORDED or config.flight_recorder_events:
                real(cache, config, *args, trace=trace, **options)
                return
            sink = trace if isinstance(trace, MemorySink) else Beside(trace) if trace else MemorySink(self._tag)
            real(cache, config, *args, trace=sink, **options)
            self._made[self.test] += 1
            self.open.append(Recording(f"{self.test}, cache {self._made[self.test]}", sink, cache))

        return init

    def advance(self, *, last: bool) -> list[Recording]:
        """Take what came since of all recordings; gives those with an event that was rejected now. `last` says that
        the test is over, its fixtures too: traces that can get no longer are put away."""
        rejected = [each for each in self.open if each.advance(to_the_end=last) is not None]
        if last:
            self.put_away([each for each in self.open if each.gone])
        return rejected

    def put_away(self, recordings: list[Recording]) -> None:
        """Count recordings that are over, and forget them but for the sample."""
        self.open = [each for each in self.open if each not in recordings]
        for each in recordings:
            self.actions += each.actions
            self.traces += bool(each.taken)
            if each.ended and each.rejected is None:
                self._draw(each)

    def _draw(self, recording: Recording) -> None:
        """Each whole trace of the session has the same chance to be in the sample."""
        self._whole += 1
        if len(self.sampled) < self._sample:
            self.sampled.append(recording)
        elif (place := self._random.randrange(self._whole)) < self._sample:
            self.sampled[place] = recording
