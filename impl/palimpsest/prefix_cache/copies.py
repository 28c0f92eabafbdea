"""The copies between a step's live buffers and the host, on whatever device the buffers live.

On an accelerator a save clones the live rows on the current stream, so that the next forward may
overwrite them, and copies the clone to the host on a stream of its own. On the host a copy has landed
when it returns. CUDA, ROCm, NPU and XPU share this path through `torch.accelerator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from palimpsest.errors import BadStepError, WaitTimeoutError
from palimpsest.memory import allocate_host
from palimpsest.prefix_cache.slow_waits import SlowWaits
from palimpsest.sync import STANDARD, Deadline, Sync

Rows = dict[str, torch.Tensor]

_POLL_S = 20e-6


def has_accelerator() -> bool:
    """Whether this torch can use an accelerator; on a CPU-only build events construct and then raise."""
    return torch.accelerator.is_available()


class LandedEvent:
    """Tells when copies queued on a stream have landed; waits are bounded, and warned of when they last.

    `on_landed`, where it is set, is called once, by whoever sees first that they have. `says` tells which copies they
    are, and for whom.
    """

    def __init__(
        self, event: torch.Event, timeout_s: float, sync: Sync = STANDARD, slow: SlowWaits | None = None
    ) -> None:
        self._event, self._timeout_s, self._sync, self._slow = event, timeout_s, sync, slow or SlowWaits(0)
        self.says: Callable[[], str] = lambda: "copies off the device"
        self.on_landed: Callable[[], None] | None = None
        self._reporting = sync.lock()

    def query(self) -> bool:
        """Whether the copies have landed."""
        return bool(self._event.query())

    def synchronize(self) -> None:
        """Wait until the copies have landed. Raises `WaitTimeoutError` when the bound runs out."""
        if not self._slow.within(Deadline(self._sync, self._timeout_s), self._lands, self._waits):
            raise WaitTimeoutError(f"a device copy did not land within {self._timeout_s:g} s: {self._waits()}")
        if self.on_landed is not None:
            self._report()

    def _lands(self, seconds: float) -> bool:
        """Whether the copies land within so many seconds."""
        deadline = Deadline(self._sync, seconds)
        while not self._event.query():
            if deadline.left() <= 0:
                return False
            self._sync.pause(_POLL_S)
        return True

    def _waits(self) -> str:
        return f"{self._sync.thread_name()} waits for {self.says()}"

    def _report(self) -> None:
        """Whoever sees the landing first reports it; nobody goes on before that is done."""
        with self._reporting:
            if self.on_landed is not None:
                self.on_landed()
                self.on_landed = None  # last: until then others wait for the lock


class Copies:
    """Makes a step's copies, with one copy stream per device."""

    def __init__(self, timeout_s: float, sync: Sync = STANDARD, slow: SlowWaits | None = None) -> None:
        self._timeout_s, self._sync, self._slow = timeout_s, sync, slow
        self._streams: dict[torch.device, torch.Stream] = {}

    def freeze_into(self, live: Mapping[str, torch.Tensor], landing: Mapping[str, torch.Tensor]) -> LandedEvent | None:
        """Queue the copy of each live value into its landing buffer; None when all have landed."""
        on_device: Rows = {}
        for key, value in live.items():
            if value.device.type == "cpu":
                landing[key].copy_(value)
            else:
                on_device[key] = value
        return self._land({key: value.clone() for key, value in on_device.items()}, landing) if on_device else None

    def clone(self, live: torch.Tensor) -> torch.Tensor:
        """A copy of `live` where it is, ordered before whatever the current stream does next."""
        return live.clone(memory_format=torch.contiguous_format)

    def mark(self, like: torch.Tensor) -> torch.Event | None:
        """An event after the work queued so far on the current stream; None on the host."""
        if like.device.type == "cpu":
            return None
        event = torch.Event(device=like.device)
        event.record(torch.accelerator.current_stream(like.device.index))
        return event

    def settle(self) -> None:
        """Wait until every copy queued so far has landed. Raises `WaitTimeoutError` when the bound runs out."""
        for device, stream in self._streams.items():
            event = torch.Event(device=device)
            event.record(stream)
            self._landed(event, "every copy queued so far").synchronize()

    def to_host(self, rows: Rows) -> tuple[Rows, LandedEvent | None]:
        """Queue copies of device rows to pinned host memory; rows on the host are given as they are."""
        landing = {
            key: value if value.device.type == "cpu" else allocate_host(tuple(value.shape), value.dtype, pinned=True)
            for key, value in rows.items()
        }
        on_device = {key: value for key, value in rows.items() if value.device.type != "cpu"}
        return landing, (self._land(on_device, landing) if on_device else None)

    def snapshot(self, value: Any) -> tuple[Any, LandedEvent | None]:
        """A host copy of `value`, tensors inside lists, tuples and dicts included, and when it has landed."""
        clones: Rows = {}
        landing: Rows = {}
        copy = self._copy_tree(value, clones, landing)
        return copy, (self._land(clones, landing) if clones else None)

    def _copy_tree(self, value: Any, clones: Rows, landing: Rows) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_leaf(value.detach(), clones, landing)
        if isinstance(value, dict):
            return {key: self._copy_tree(item, clones, landing) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            copies = [self._copy_tree(item, clones, landing) for item in value]
            return copies if isinstance(value, list) else tuple(copies)
        return value

    def _copy_leaf(self, value: torch.Tensor, clones: Rows, landing: Rows) -> torch.Tensor:
        if value.is_meta:
            raise BadStepError(f"a value of shape {list(value.shape)} has no memory (device meta)")
        if value.device.type == "cpu":
            return self.clone(value) if value.layout is torch.strided else value.clone()
        name = str(len(clones))
        clones[name] = self.clone(value)
        landing[name] = allocate_host(tuple(value.shape), value.dtype, pinned=True)
        return landing[name]

    def _land(self, rows: Mapping[str, torch.Tensor], landing: Mapping[str, torch.Tensor]) -> LandedEvent:
        device = next(iter(rows.values())).device
        stream = self._stream(device)
        stream.wait_stream(torch.accelerator.current_stream(device.index))
        with stream:
            for key, value in rows.items():
                landing[key].copy_(value, non_blocking=True)
                value.record_stream(stream)
        event = torch.Event(device=device)
        event.record(stream)
        return self._landed(event)

    def _landed(self, event: torch.Event, says: str = "copies off the device") -> LandedEvent:
        landed = LandedEvent(event, self._timeout_s, self._sync, self._slow)
        landed.says = lambda: says
        return landed

    def _stream(self, device: torch.device) -> torch.Stream:
        if device not in self._streams:
            self._streams[device] = torch.Stream(device=device)
        return self._streams[device]
