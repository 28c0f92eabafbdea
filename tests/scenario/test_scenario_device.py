"""Section B of the scenarios, with a device in slow motion: what streams and events must order.

The device here queues the work of each stream and runs it when the test says, in the order that the test
says. `palimpsest.prefix_cache.copies` sees it in place of torch's streams and events, so that the real copies
are made in the worst order, on a machine without an accelerator.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from palimpsest.errors import ShutdownError, WaitTimeoutError, WriteFailedError
from palimpsest.prefix_cache import copies
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.trace import MemorySink
from palimpsest_model_check.tlc_replay import replay_in_tlc
from palimpsest_model_check.tlc_replay.translate import translate
from tests.scenario.test_scenario_copies import assert_pool
from tests.scenario.test_scenario_visibility import assert_rows
from tests.support import HASTY_S, PATIENT_S, Background, Script, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")
GARBAGE = -7.0  # what memory holds that nobody has written


class Stream:
    """Operations in order; one that waits for another stream holds up those behind it."""

    def __init__(self, device):
        self.device, self.queue = device, deque()
        device.streams.append(self)

    def wait_stream(self, other):
        event = Event(self.device)
        event.record(other)
        self.queue.append(lambda: event.landed)

    def __enter__(self):
        self.device.on_this_thread.stream = self

    def __exit__(self, *exc):
        del self.device.on_this_thread.stream


class Event:
    """Landed once its stream has come to it. Whoever asks is noted, and may drive the device."""

    def __init__(self, device):
        self.device, self.landed = device, False

    def record(self, stream):
        stream.queue.append(self._land)

    def _land(self):
        self.landed = True
        return True

    def query(self):
        self.device.was_asked()
        return self.landed


class Device:
    """Streams that run when the test says; `driven` lets each query run one operation, copies first."""

    def __init__(self):
        self.streams, self.on_this_thread, self.driven = [], threading.local(), False
        self.compute = Stream(self)
        self._lock, self._askers, self._asked = threading.RLock(), set(), threading.Condition()

    def current(self, index=None):
        return getattr(self.on_this_thread, "stream", self.compute)

    def queue(self, work):
        self.current().queue.append(lambda: (work(), True)[1])

    def run(self, *streams):
        """Run all that these streams (none: every stream, copies first) can do."""
        with self._lock:
            while any(self._one(stream) for stream in streams or self.streams[::-1]):
                pass

    def _one(self, stream):
        if not stream.queue or not stream.queue[0]():
            return False
        stream.queue.popleft()
        return True

    def was_asked(self):
        with self._asked:
            self._askers.add(threading.current_thread().name)
            self._asked.notify_all()
        if self.driven:
            with self._lock:
                any(self._one(stream) for stream in self.streams[::-1])

    def wait_until_asked_by(self, name):
        with self._asked:
            assert self._asked.wait_for(lambda: name in self._askers, PATIENT_S), f"{name} does not wait"


class OnDevice(torch.Tensor):
    """A tensor on the device: copies and fills are queued, and memory that is let go of is used again unless
    the stream that still reads it was told of."""

    sim: Device

    @property
    def device(self):
        return torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.clone:
                out = torch.full_like(args[0].as_subclass(torch.Tensor), GARBAGE).as_subclass(cls)
                cls.queue_copy(out, args[0])
                return out
            if func is torch.Tensor.copy_:
                cls.queue_copy(*args[:2])
                return args[0]
            if func is torch.Tensor.fill_:
                target = args[0].as_subclass(torch.Tensor)
                cls.sim.queue(lambda: target.fill_(args[1]))
                return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})

    def record_stream(self, stream):
        self.__dict__.setdefault("readers", []).append(stream)

    @classmethod
    def queue_copy(cls, target, source):
        to, values, alive = target.as_subclass(torch.Tensor), source.as_subclass(torch.Tensor), weakref.ref(source)
        readers = source.__dict__.setdefault("readers", []) if isinstance(source, OnDevice) else []
        elsewhere = cls.sim.current() is not cls.sim.compute

        def work():
            used_again = elsewhere and alive() is None and not readers
            to.fill_(GARBAGE) if used_again else to.copy_(values)

        cls.sim.queue(work)


class DeviceScript(Script):
    """A scripted runner whose forward is queued on the device and writes live buffers there."""

    def _rows(self, key):
        rows = super()._rows(key)
        return torch.full_like(rows, GARBAGE).as_subclass(OnDevice).copy_(rows)


class SeenByCopies:
    """What `copies` sees as torch."""

    def __init__(self, sim):
        self.Stream, self.Event = lambda device: Stream(sim), lambda device: Event(sim)
        self.accelerator = SimpleNamespace(is_available=lambda: True, current_stream=sim.current)

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def device(monkeypatch):
    made = OnDevice.sim = Device()
    monkeypatch.setattr(copies, "torch", SeenByCopies(made))
    return made


@pytest.fixture
def on_device(device):
    """Makes scripted runners on the device; what they queued last lands before they are closed."""
    made = []

    def make(*args, **options):
        made.append(DeviceScript(*args, trace=MemorySink(), **options))
        return made[-1]

    yield make
    device.driven = True
    for each in made:
        each.close()


def test_S15_rows_are_those_of_the_save_although_the_next_forward_overwrites_them_before_the_copy(on_device, device):
    s = on_device(DEFERRED, eager=False)
    s.begin({"a": prefill([0], 4), "b": prefill([1], 2)})
    signal = torch.full((3, 4), GARBAGE).as_subclass(OnDevice).copy_(s.rows_of("s", 0, 3, "s"))
    step = s.save("k", "d", mm={"s": signal})
    signal.fill_(-1.0)
    device.run(device.compute)  # the forward, the snapshot and the next forward; no copy to the host yet
    assert not any(torch.equal(s.pool(HIDDEN_KEY, [slot]), s.rows_of("a", slot, slot + 1)) for slot in range(4))
    device.run()
    device.driven = True
    outputs = s.cache.materialize(step, ["a", "b"])
    assert_rows(s, outputs, "a", ("a", 0, 4))
    assert_rows(s, outputs, "b", ("b", 0, 2))
    assert torch.equal(outputs.mm_outputs["s"]["a"], s.rows_of("s", 0, 3, "s"))
    s.idle(finished=["a", "b"])
    s.settle()
    for key in KEYS:
        assert_pool(s, key, range(6), ("a", 0, 4), ("b", 0, 2))


def test_S17_nobody_on_the_host_reads_a_page_before_its_copy_has_landed(on_device, device):
    s = on_device(eager=False)
    step = s.step({"a": prefill([0], 4), "b": hit([0, 1], 4, 1)}, "k")
    outputs = Background(lambda: s.cache.materialize(step, ["a", "b"]), name="builder")
    device.run(device.compute)
    device.wait_until_asked_by("builder")
    device.wait_until_asked_by("palimpsest-committer")
    assert outputs.running
    assert len(s.cache._controller._staging_pool._busy[0]) == 3  # the step and the tasks of a and b
    assert torch.equal(s.pool("k", range(4)), torch.zeros(4, 4))
    device.run()
    assert_rows(s, outputs.result(), "a", ("a", 0, 4), keys=(HIDDEN_KEY, "k"))
    assert_rows(s, outputs.result(), "b", ("a", 0, 4), ("b", 4, 5), keys=(HIDDEN_KEY, "k"))
    s.settle()
    assert_pool(s, "k", range(5), ("a", 0, 4), ("b", 4, 5))


@pytest.mark.forges("escalates by hand a task that no action closed")
def test_S18_no_copy_runs_before_the_kernel_that_produces_its_rows_has_retired(on_device, device):
    s = on_device(DEFERRED, eager=False)
    s.generation["a"] = 18  # no earlier test left such rows in memory
    step = s.step({"a": prefill([0], 4)}, "k", "d")
    s.cache._controller.escalate([s.cache._request_tasks.deferred["a"].tid])
    copy_streams = device.streams[1:]
    assert copy_streams
    device.run(*copy_streams)  # as far as they can without the forward: not at all
    for key, view in s.cache._step_ctxs[step].d2h.views.items():
        assert not torch.equal(view, s.rows_of("a", 0, 4, key, 18))
    device.driven = True
    assert_rows(s, s.cache.materialize(step, ["a"]), "a", ("a", 0, 4, 18))
    s.settle()
    for key in KEYS:
        assert_pool(s, key, range(4), ("a", 0, 4, 18))


def test_S27_the_eager_mode_keeps_the_order_of_the_threaded_one(on_device, device, eager):
    s = on_device(DEFERRED, eager=eager)
    device.driven = True  # each poll of an event runs one operation, copies first
    first = s.step({"a": prefill([0], 4), "b": hit([0, 1], 4, 2)}, "k")
    second = s.step({"a": more([0, 2], 4), "b": more([0, 1], 6)}, "k")
    outputs = s.cache.materialize(first, ["a", "b"])
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 6), keys=(HIDDEN_KEY, "k"))
    s.run({"z": prefill([3], 4)}, "d", finished=["a"])
    s.idle(finished=["z"])
    s.settle()
    third = s.run({"c": hit([3, 0, 4], 8, 1)}, "d", finished=["b"])
    assert_rows(s, third, "c", ("z", 0, 4), ("a", 0, 4), ("c", 8, 9), keys=(HIDDEN_KEY,))
    assert torch.equal(third.mm_outputs["d"]["c"][:4], s.rows_of("z", 0, 4, "d"))
    assert_rows(s, s.cache.materialize(second, ["a", "b"]), "a", ("a", 4, 5), keys=(HIDDEN_KEY, "k"))


def test_S27_without_a_stream_a_copy_has_landed_when_the_save_returns(script, eager):
    s = script(DEFERRED, eager=eager)
    step = s.step({"a": prefill([0], 4)}, "k", "d")
    landing = s.cache._step_ctxs[step].d2h
    assert landing.event is None
    for key, view in landing.views.items():
        assert torch.equal(view, s.rows_of("a", 0, 4, key))
    assert_rows(s, s.cache.materialize(step, ["a"]), "a", ("a", 0, 4))


def test_S76_shutdown_lets_a_copy_in_flight_land_before_its_page_is_released(on_device, device):
    s = on_device(eager=False)
    s.step({"a": prefill([0], 4)}, "k")
    device.wait_until_asked_by("palimpsest-committer")
    pages = s.cache._controller._staging_pool._busy
    end = Background(s.cache.shutdown)
    with s.cache._controller._work:
        assert s.cache._controller._work.wait_for(lambda: s.cache._controller._closing, PATIENT_S)
    assert len(pages[0]) == 2
    device.run()
    end.result()
    assert_pool(s, "k", range(4), ("a", 0, 4))
    assert not any(pages)
    with pytest.raises(ShutdownError):
        s.begin({})


def test_S76_shutdown_with_a_copy_that_never_lands_is_bounded_and_writes_nothing(on_device, device):
    s = on_device(eager=False, staging_claim_timeout_s=HASTY_S)
    s.step({"a": prefill([0], 4)}, "k")
    device.wait_until_asked_by("palimpsest-committer")
    with suppress(WaitTimeoutError):  # when the thread's bound runs out before the copy's
        s.cache.shutdown()
    assert torch.equal(s.pool("k", range(4)), torch.zeros(4, 4))
    device.run()  # the late copy lands on memory that is still there
    assert torch.equal(s.pool("k", range(4)), torch.zeros(4, 4))
    with pytest.raises(ShutdownError):
        s.begin({})


def test_a_save_that_fails_after_its_copy_was_queued_keeps_its_page_until_the_copy_has_landed(on_device, device):
    s = on_device(eager=False)
    s.begin({"a": prefill([0], 4)})
    s.cache.publish, real = lambda *_: (_ for _ in ()).throw(MemoryError("planted")), s.cache.publish
    save = Background(lambda: s.save("k"), name="engine")
    device.wait_until_asked_by("engine")
    pages = s.cache._controller._staging_pool._busy
    assert [len(holders) for holders in pages].count(1) == 1
    device.run()
    with pytest.raises(MemoryError, match="planted"):
        save.result()
    assert not any(pages)
    s.cache.publish, device.driven = real, True
    outputs = s.cache.materialize(s.save("k"), ["a"])
    assert_rows(s, outputs, "a", ("a", 0, 4), keys=(HIDDEN_KEY, "k"))


@pytest.mark.forges("frees by hand the page that the stuck copy keeps")
def test_a_page_whose_copy_never_lands_is_not_given_to_another_step(on_device, device):
    s = on_device(eager=False, staging_depth=2, staging_claim_timeout_s=HASTY_S)
    s.begin({"a": prefill([0], 4)})
    s.cache.publish, real = lambda *_: (_ for _ in ()).throw(MemoryError("planted")), s.cache.publish
    with pytest.raises(MemoryError, match="planted"):
        s.save("k")
    pages = s.cache._controller._staging_pool._busy
    assert [len(holders) for holders in pages] == [1, 0]
    s.cache.publish = real
    step = s.save("k")
    assert s.cache._step_ctxs[step].d2h.staging_slot == 1
    s.cache._controller._staging_pool._busy[0].clear()  # nobody else can: the copy is stuck for good
    device.driven = True
    with suppress(WriteFailedError):
        s.cache._controller.join(s.cache._join_next_step_tids)
    s.cache.discard_step(step)


@pytest.mark.parametrize("first", ["builder", "committer"])
def test_S17_a_builder_whose_rows_never_land_raises_and_their_write_is_lost_loudly(on_device, device, first):
    s = on_device(eager=False, staging_claim_timeout_s=HASTY_S)
    controller = s.cache._controller
    with held_at(controller, "_copy_to_host") as committer, held_at(s.cache, "_copy_out") as builder:
        step = s.step({"a": prefill([0], 4), "b": hit([0, 1], 4, 1)}, "k")
        tasks = list(controller._tasks.values())
        outputs = Background(lambda: s.cache.materialize(step, ["a", "b"]), name="builder")
        builder.wait_until_reached()
        for thread in (builder, committer) if first == "builder" else (committer, builder):
            thread.open()
            if thread is committer:
                assert all(task.done.wait(PATIENT_S) for task in tasks)
            else:
                with pytest.raises(WaitTimeoutError, match="a device copy did not land"):
                    outputs.result()
                assert len(controller._staging_pool._busy[0]) == (2 if first == "builder" else 0)
    assert not list(s.cache._pending_reads)
    with pytest.raises(WriteFailedError):
        s.begin({"c": prefill([2], 1)})
    end = replay_in_tlc([translate(first, s.trace.config, s.trace.events, None)])
    assert all(verdict.ok for verdict in end), "\n".join(map(str, end))
