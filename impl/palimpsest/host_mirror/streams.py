"""Streams and events: the device's, and the same on the host with real threads.

A `HostStream` is a thread that does what is queued on it in order, beside the caller; a `HostEvent` says when
what was queued before it is done. They keep to CUDA's rules: a wait is for the record that was the last one
*when the wait was issued*, and an event that was never recorded is done. So the mirror runs one code path, and
tests on the host see the orders that a device can show. Every wait has a bound.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from palimpsest.errors import CopyFailedError, MirrorTimeoutError
from palimpsest.sync import STANDARD, Deadline, Sync

DEFAULT_TIMEOUT_S = 60.0
_POLL_S = 20e-6


class _Mark:
    """One record of an event: done once its stream got there; `error` if something before it failed."""

    def __init__(self, sync: Sync, name: str) -> None:
        self.reached, self.name = sync.event(), name
        self.error: BaseException | None = None

    def wait(self, timeout_s: float, who: str) -> None:
        if not self.reached.wait(timeout_s):
            raise MirrorTimeoutError(f"{who} waited {timeout_s:g} s for {self.name}, which did not get there")
        if self.error is not None:
            raise CopyFailedError(f"{who} waited for {self.name}, where a copy failed: {self.error}") from self.error


class HostEvent:
    """An event of host streams. Recorded on no stream, or on the caller's, it is done at once."""

    def __init__(self, sync: Sync = STANDARD, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._sync, self._timeout_s = sync, timeout_s
        self._mark: _Mark | None = None

    def record(self, stream: Any = None) -> None:
        """Be done once everything queued on `stream` so far is done."""
        if isinstance(stream, HostStream):
            self._mark = stream.mark()
        else:
            self._mark = None

    def query(self) -> bool:
        """Whether it is done. Raises `CopyFailedError` when it is, but a copy before it failed."""
        mark = self._mark
        if mark is None:
            return True
        if not mark.reached.is_set():
            return False
        mark.wait(0, "a query")
        return True

    def synchronize(self) -> None:
        """Wait until it is done. Raises `MirrorTimeoutError` or `CopyFailedError`."""
        if self._mark is not None:
            self._mark.wait(self._timeout_s, "the caller")

    def last_record(self) -> _Mark | None:
        """The record that a wait issued now is for."""
        return self._mark


class CallerStream:
    """The caller's own order: what it does is done when the call returns, so that to wait is to block."""

    def wait_event(self, event: Any) -> None:
        """Block until `event` is done."""
        event.synchronize()

    def wait_stream(self, stream: Any) -> None:
        """Block until everything queued on `stream` so far is done."""
        if isinstance(stream, HostStream):
            stream.synchronize()

    def synchronize(self) -> None:
        """Nothing is queued."""


CALLER = CallerStream()


class HostStream:
    """A thread that does what is queued on it, in order. After a failure it does nothing more but to pass events,
    which carry the error to whoever waits. `close` ends the thread."""

    def __init__(self, name: str, sync: Sync = STANDARD, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.name, self._sync, self._timeout_s = name, sync, timeout_s
        self._lock = sync.lock()
        self._more = sync.condition(self._lock)
        self._queue: deque[Callable[[], object] | _Mark] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = sync.thread(self._run, name)
        self._thread.start()

    def submit(self, work: Callable[[], object]) -> None:
        """Queue `work`. Raises `CopyFailedError` when the stream is closed."""
        self._put(work)

    def wait_event(self, event: Any) -> None:
        """Have what is queued from now on wait for the last record of `event`."""
        mark = event.last_record() if isinstance(event, HostEvent) else None
        if mark is not None:
            self._put(lambda: mark.wait(self._timeout_s, self.name))

    def wait_stream(self, stream: Any) -> None:
        """Have what is queued from now on wait for what is queued on `stream`; the caller's own work is done."""
        if isinstance(stream, HostStream) and stream is not self:
            mark = stream.mark()
            self._put(lambda: mark.wait(self._timeout_s, self.name))

    def synchronize(self) -> None:
        """Block until everything queued so far is done."""
        self.mark().wait(self._timeout_s, "the caller")

    def mark(self) -> _Mark:
        """A point behind everything queued so far."""
        mark = _Mark(self._sync, f"stream {self.name!r}")
        self._put(mark)
        return mark

    def new_event(self) -> HostEvent:
        """An event with the stream's bound on waits."""
        return HostEvent(self._sync, self._timeout_s)

    def close(self) -> None:
        """Do what is queued, and end the thread; idempotent. Raises `MirrorTimeoutError` when it does not end."""
        with self._lock:
            self._closed = True
            self._more.notify()
        deadline = Deadline(self._sync, self._timeout_s)
        self._thread.join(deadline.left())
        if self._thread.is_alive():
            raise MirrorTimeoutError(f"stream {self.name!r} did not end within {self._timeout_s:g} s")

    def _put(self, item: Callable[[], object] | _Mark) -> None:
        with self._lock:
            if self._closed:
                raise CopyFailedError(f"stream {self.name!r} is closed")
            self._queue.append(item)
            self._more.notify()

    def _take(self) -> Callable[[], object] | _Mark | None:
        with self._lock:
            while not self._queue and not self._closed:
                self._more.wait()
            return self._queue.popleft() if self._queue else None

    def _run(self) -> None:
        while (item := self._take()) is not None:
            if isinstance(item, _Mark):
                item.error = self._error
                item.reached.set()
            elif self._error is None:
                try:
                    item()
                except BaseException as error:  # carried by the marks behind it
                    self._error = error


# ------------------------------------------------------------------ either kind


class DeviceEvent(torch.cuda.Event):
    """A device's event whose wait on the host has a bound."""

    bound: tuple[Sync, float] = STANDARD, DEFAULT_TIMEOUT_S

    def record(self, stream: Any = None) -> None:
        """Be done once everything queued on `stream` so far is done; None: on the caller's."""
        event: Any = super()  # whose methods are not typed
        event.record(current_stream() if stream is None else stream)

    def synchronize(self) -> None:
        """Wait until it is done. Raises `MirrorTimeoutError`."""
        sync, timeout_s = self.bound
        deadline = Deadline(sync, timeout_s)
        event: Any = self  # whose methods are not typed
        while not event.query():
            if deadline.left() <= 0:
                raise MirrorTimeoutError(f"a device copy did not land within {timeout_s:g} s")
            sync.pause(_POLL_S)


def current_stream() -> Any:
    """The stream that the caller's device work goes to; without a device, the caller's own order."""
    return torch.cuda.current_stream(torch.cuda.current_device()) if has_device() else CALLER


@functools.cache
def has_device() -> bool:
    """Whether this process has a device of CUDA's or ROCm's; torch takes microseconds to say so."""
    return torch.cuda.is_available()


def new_stream(device: torch.device) -> Any:
    """A new stream of `device`; on the host the caller's own order."""
    cuda: Any = torch.cuda  # whose classes are not all typed
    return cuda.Stream(device=device) if device.type == "cuda" else CALLER


def is_capturing() -> bool:
    """Whether the caller's device work is being captured into a graph, when nothing of the host's takes part."""
    return bool(has_device() and torch.cuda.is_current_stream_capturing())


def run_on(stream: Any, work: Callable[[], object]) -> None:
    """Do `work` on `stream`: queued on a host stream; issued at once to a device's; now where there is none."""
    if isinstance(stream, HostStream):
        stream.submit(work)
    elif stream is None or stream is CALLER:
        work()
    else:
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        with context:
            work()


def event_for(stream: Any) -> Any:
    """A new event that can be recorded on `stream`."""
    if isinstance(stream, HostStream):
        return stream.new_event()
    return HostEvent() if isinstance(stream, CallerStream) else torch.Event()
