"""OpenTelemetry spans made of the protocol's events: who waited for what, and how long each write and read took.

    PrefixCacheManager(config, view, trace=SpanSink(trace.get_tracer("palimpsest")))

The sink is a trace: without it the cache emits nothing. Emitting hands the event on, with the time, to a thread that
makes the spans, since what a span costs depends on the exporter.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from palimpsest.trace.sinks import Tag

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

#: of every span's name
PREFIX = "palimpsest."
#: how long the end may take
CLOSE_S = 20.0


class Moment(NamedTuple):
    """An event and when it came, in nanoseconds since the epoch."""

    ns: int
    thread: str
    action: str
    args: dict[str, Any]
    post: dict[str, Any]


#: the kind of span, and which one it is
Key = tuple[Any, ...]
Says = Callable[[dict[str, Any]], dict[str, Any]]

_BEGINS: dict[str, tuple[Callable[[Moment], Key], Says]] = {
    "publish": (
        lambda it: ("step", it.args["step"]),
        lambda args: {
            "step": args["step"], "page": args["page"],
            "requests": len(args["requests"]), "tokens": sum(args["counts"]),
        },
    ),
    "claim_page_begin": (lambda it: ("page_wait", it.thread), lambda args: {"step": args["holder"][1]}),
    "join_begin": (lambda it: ("join", it.thread), lambda args: {"tasks": len(args["tids"])}),
    "claim_copy": (lambda it: ("write", it.ns, it.thread), lambda args: {"tasks": len(args["tids"])}),
    "begin_fetch": (lambda it: ("fetch", it.args["read"]), lambda args: {"read": args["read"]}),
}  # fmt: skip
#: None for the writes that are over
_ENDS: dict[str, tuple[Callable[[Moment], list[Key]] | None, Says]] = {
    "take_step": (lambda it: [("step", it.args["step"])], lambda _: {"discarded": False}),
    "discard_step": (lambda it: [("step", it.args["step"])], lambda _: {"discarded": True}),
    "claim_page_end": (lambda it: [("page_wait", it.thread)], lambda args: {"page": args["page"]}),
    "join_end": (lambda it: [("join", it.thread)], lambda _: {}),
    "end_fetch": (lambda it: [("fetch", it.args["read"])], lambda _: {"dropped": False}),
    "drop_read": (lambda it: [("fetch", read) for read in it.args["reads"]], lambda _: {"dropped": True}),
    "complete": (None, lambda _: {"failed": False}),
    "fail": (None, lambda _: {"failed": True}),
}


class SpanSink:
    """Takes the events of one cache and makes spans with `tracer`. `close` ends the thread, when all are made.

    docs/metrics.md lists the spans. Each has the thread that began it as `thread.name`. A step's span is not the parent
    of the others: writes of several steps are made together.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tag: Tag | None = None
        self._tracer = tracer
        self._queue: queue.SimpleQueue[Moment | None] = queue.SimpleQueue()
        self._spans: dict[Key, Span] = {}
        #: the tasks that each write still has to do
        self._left: dict[Key, set[int]] = {}
        self._thread = threading.Thread(target=self._make, name="palimpsest-spans", daemon=True)
        self._thread.start()

    def begin(self, config: dict[str, Any]) -> None:
        """Nothing is made of what the cache was made with."""

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Hand one event on."""
        self._queue.put(Moment(time.time_ns(), threading.current_thread().name, action, args, post))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Make what is left, end the spans that are open, and the thread; idempotent.

        Raises `TimeoutError` where that takes longer than `timeout_s` seconds; it goes on all the same.
        """
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"{self._thread.name} has not made its spans within {timeout_s:g} s: the tracer holds it, and some "
                f"{self._queue.qsize()} events are left"
            )

    def _make(self) -> None:
        while (moment := self._queue.get()) is not None:
            if (begins := _BEGINS.get(moment.action)) is not None:
                self._open(begins[0](moment), moment, begins[1](moment.args))
            elif moment.action in _ENDS:
                keys, says = _ENDS[moment.action]
                for key in self._over(moment) if keys is None else keys(moment):
                    self._end(key, moment, says(moment.args))
        for span in self._spans.values():
            span.end()
        self._spans.clear()

    def _open(self, key: Key, moment: Moment, says: dict[str, Any]) -> None:
        if key[0] == "write":
            self._left[key] = set(moment.args["tids"])
        attributes = {"thread.name": moment.thread, **{PREFIX + name: value for name, value in says.items()}}
        self._spans[key] = self._tracer.start_span(PREFIX + key[0], start_time=moment.ns, attributes=attributes)

    def _end(self, key: Key, moment: Moment, says: dict[str, Any]) -> None:
        if (span := self._spans.pop(key, None)) is not None:
            span.set_attributes({PREFIX + name: value for name, value in says.items()})
            span.end(end_time=moment.ns)

    def _over(self, it: Moment) -> Iterator[Key]:
        """The writes whose last task this was."""
        tids = set(it.args["tids"])
        for key in [key for key, left in self._left.items() if left & tids]:
            self._left[key] -= tids
            if not self._left[key]:
                del self._left[key]
                yield key
