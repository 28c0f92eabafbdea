"""OpenTelemetry spans, made by its SDK: what began and ended when, and that nothing is made without the sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from palimpsest.spans import PREFIX, SpanSink
from tests.support import Gate, hit, more, prefill


class Spans:
    """A sink whose spans are kept by the SDK's exporter."""

    def __init__(self) -> None:
        self._kept, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.sink = SpanSink(provider.get_tracer("tests"))

    def made(self, name: str) -> list[ReadableSpan]:
        self.sink.close()
        return [span for span in self._kept.get_finished_spans() if span.name == PREFIX + name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.sink.close()


def says(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): value for name, value in (span.attributes or {}).items()}


def test_each_step_is_a_span_from_its_publication_to_its_builder(script, spans):
    s = script(eager=False, trace=spans.sink)
    s.run({"a": prefill([0], 4)})
    s.settle()
    s.cache.discard_step(s.step({"a": more([0, 1], 4), "b": hit([0, 2], 4, 1)}))
    s.settle()
    first, second = spans.made("step")
    assert says(first) == {
        "thread.name": "MainThread", "step": 1, "page": 0, "requests": 1, "tokens": 4, "discarded": False,
    }  # fmt: skip
    assert (says(second)["requests"], says(second)["discarded"]) == (2, True)
    assert first.start_time < first.end_time <= second.start_time


def test_writes_are_the_committers_and_fetches_name_their_reads(script, spans):
    s = script(eager=False, trace=spans.sink)
    s.run({"a": prefill([0], 4)})
    s.settle()
    s.run({"b": hit([0, 1], 4, 1)})
    s.settle()
    writes, (fetch,) = spans.made("write"), spans.made("fetch")
    assert sum(says(span)["tasks"] for span in writes) == 2
    assert {(says(span)["thread.name"], says(span)["failed"]) for span in writes} == {("palimpsest-committer", False)}
    assert says(fetch)["dropped"] is False
    assert [says(span)["step"] for span in spans.made("page_wait")] == [1, 2]


def test_a_write_that_fails_says_so(script, spans, monkeypatch):
    s = script(eager=False, trace=spans.sink)

    def broken(*_: Any) -> None:
        raise OSError("planted")

    monkeypatch.setattr(s.cache._pool, "write", broken)
    s.cache.discard_step(s.step({"a": prefill([0], 4)}))
    s.cache.shutdown()
    (write,) = spans.made("write")
    assert says(write)["failed"] is True


def test_what_is_open_at_the_end_is_ended(spans):
    spans.sink.emit("begin_fetch", {"read": 7}, {})
    (fetch,) = spans.made("fetch")
    assert says(fetch)["read"] == 7
    assert fetch.end_time is not None


def test_an_exporter_that_hangs_is_named_at_the_end_and_what_is_left_is_made_when_it_goes_on(script, spans):
    gate = Gate()
    provider = TracerProvider()
    kept = InMemorySpanExporter()
    exporting = kept.export
    kept.export = lambda made: (gate.wait_here(), exporting(made))[1]
    provider.add_span_processor(SimpleSpanProcessor(kept))
    sink = SpanSink(provider.get_tracer("tests"))
    s = script(eager=False, trace=sink)
    s.run({"a": prefill([0], 4)})
    s.settle()
    gate.wait_until_reached()
    with pytest.raises(TimeoutError, match=r"palimpsest-spans has not made its spans within 0.01 s"):
        sink.close(timeout_s=0.01)
    gate.open()
    sink.close()
    assert {span.name for span in kept.get_finished_spans()} >= {PREFIX + "step", PREFIX + "write"}
