"""Streams and events on the host: the orders that a device gives, no more and no less."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import CopyFailedError, MirrorTimeoutError
from palimpsest.host_mirror.streams import CALLER, HostEvent, HostStream, event_for, new_stream, run_on
from tests.support import HASTY_S, PATIENT_S, Gate


@pytest.fixture
def stream():
    made = HostStream("copies", timeout_s=PATIENT_S)
    yield made
    made.close()


@pytest.fixture
def other():
    made = HostStream("others", timeout_s=PATIENT_S)
    yield made
    made.close()


def test_work_is_done_in_order_beside_the_caller(stream):
    done, gate = [], Gate()
    stream.submit(gate.wait_here)
    for number in range(5):
        stream.submit(lambda number=number: done.append(number))
    gate.wait_until_reached()
    assert done == []
    gate.open()
    stream.synchronize()
    assert done == [0, 1, 2, 3, 4]


def test_an_event_is_for_what_was_queued_before_its_last_record(stream):
    event, gate = HostEvent(timeout_s=PATIENT_S), Gate()
    assert event.query()  # never recorded
    event.record(stream)
    event.synchronize()
    stream.submit(gate.wait_here)
    assert event.query()
    event.record(stream)
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


def test_a_wait_is_for_the_record_that_was_the_last_when_it_was_issued(stream, other):
    event, first, second, done = HostEvent(timeout_s=PATIENT_S), Gate(), Gate(), Gate()
    stream.submit(first.wait_here)
    event.record(stream)
    other.wait_event(event)
    stream.submit(second.wait_here)
    event.record(stream)  # recorded again: the wait issued before does not move on to it
    other.submit(done._open.set)
    assert not done._open.is_set()
    first.open()
    other.synchronize()
    assert done._open.is_set()
    assert not event.query()
    second.open()


def test_a_stream_waits_for_what_another_has_queued(stream, other):
    gate, seen = Gate(), []
    stream.submit(gate.wait_here)
    stream.submit(lambda: seen.append("first"))
    other.wait_stream(stream)
    other.submit(lambda: seen.append("second"))
    gate.open()
    other.synchronize()
    assert seen == ["first", "second"]


def test_the_callers_waits_block_and_its_events_are_done(stream):
    gate, event = Gate(), HostEvent()
    event.record(CALLER)
    assert event.query()
    stream.submit(gate.wait_here)
    gate.open()
    CALLER.wait_stream(stream)
    assert gate.reached.is_set()


def test_whoever_waits_behind_a_failure_hears_of_it_and_nothing_runs_after_it(stream, other):
    event, ran = HostEvent(timeout_s=PATIENT_S), []
    before = HostEvent(timeout_s=PATIENT_S)
    before.record(stream)

    def fail():
        raise OSError("no such bus")

    stream.submit(fail)
    stream.submit(lambda: ran.append(1))
    event.record(stream)
    other.wait_event(event)
    other.submit(lambda: ran.append(2))
    for wait in (event.synchronize, stream.synchronize, event.query):
        with pytest.raises(CopyFailedError, match="no such bus"):
            wait()
    with pytest.raises(CopyFailedError, match="stream 'copies', where a copy failed"):
        other.synchronize()
    before.synchronize()
    assert ran == []


def test_waits_have_a_bound_and_name_the_stream():
    stream, gate = HostStream("slow", timeout_s=HASTY_S), Gate()
    stream.submit(gate.wait_here)
    with pytest.raises(MirrorTimeoutError, match=r"waited 0\.05 s for stream 'slow'"):
        stream.synchronize()
    with pytest.raises(MirrorTimeoutError, match="stream 'slow' did not end"):
        stream.close()
    gate.open()


def test_a_closed_stream_does_what_is_queued_and_takes_nothing_more():
    stream, done = HostStream("closing", timeout_s=PATIENT_S), []
    stream.submit(lambda: done.append(1))
    stream.close()
    stream.close()
    assert done == [1]
    with pytest.raises(CopyFailedError, match="stream 'closing' is closed"):
        stream.submit(lambda: None)


def test_work_runs_where_it_is_told_to(stream):
    done = []
    run_on(None, lambda: done.append("now"))
    run_on(CALLER, lambda: done.append("now"))
    assert done == ["now", "now"]
    run_on(stream, lambda: done.append("queued"))
    stream.synchronize()
    assert done[-1] == "queued"
    assert isinstance(event_for(stream), HostEvent)
    assert new_stream(torch.device("cpu")) is CALLER
