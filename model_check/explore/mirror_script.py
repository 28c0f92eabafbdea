"""Ranks that drive a host mirror as a scenario says: each a thread, with its copy stream beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from palimpsest.host_mirror import HostMirror, HostMirrorConfig, LayerSpec
from palimpsest.host_mirror.streams import HostStream

from .digest import digest
from .finding import Finding
from .mirror_driver import ROWS, WIDTH, Driver
from .primitives import CooperativeSync
from .scheduler import Scheduler
from .threads import Abandon
from .watch import Watch

_RUNS = itertools.count()


def _identities(_layer: str, rows: torch.Tensor) -> np.ndarray[Any, Any]:
    return rows.numpy().astype(np.int64)


class Ranks:
    """Ranks that are threads of a run: a barrier is passed once all have come."""

    def __init__(self, scheduler: Scheduler, size: int, shared: dict[str, Any], rank: int) -> None:
        self.rank, self.size = rank, size
        self._scheduler, self._shared = scheduler, shared

    def barrier(self) -> None:
        """Wait for the others."""
        self._shared["come"] += 1
        due = -(-self._shared["come"] // self.size) * self.size
        self._scheduler.point("wait for", "all ranks", lambda: self._shared["come"] >= due)

    def from_writer(self, values: list[int]) -> list[int]:
        """The values of rank 0."""
        if self.rank == 0:
            self._shared["values"] = values
        self.barrier()
        found: list[int] = self._shared["values"]
        self.barrier()
        return found


class MirrorScript:
    """The threads of a scenario and their mirrors. Made before the run; the first rank's thread runs `engine`."""

    def __init__(
        self,
        scheduler: Scheduler,
        allows: tuple[type[BaseException], ...] = (),
        error: type[BaseException] = OSError,  # noqa: ARG002  # copies of a mirror are not made to fail
        slow_device: bool = False,  # noqa: ARG002  # a copy stream is always one
        *,
        ranks: int = 1,
        **options: Any,
    ) -> None:
        self.scheduler, self.allows = scheduler, allows
        self.sync = CooperativeSync(scheduler)
        self.watch = Watch(scheduler, _identities)
        sizes: dict[str, Any] = {
            "block_rows": ROWS, "num_host_blocks": 4, "num_resident_blocks": 4, "max_requests": 1, "max_pages": 3,
            "max_rows": 4, "top_k": 1, "hot_rows": 3, "draft_tokens": 2, "dtype": torch.float32, "timeout_s": 60.0,
            "engine_id": f"explored-{next(_RUNS)}",
        }  # fmt: skip
        layers = LayerSpec("target", WIDTH), LayerSpec("draft", WIDTH, draft=True)
        config = HostMirrorConfig(layers=layers, **{**sizes, **options})
        shared: dict[str, Any] = {"come": 0}
        self.drivers = [
            Driver(self, HostMirror(config, ranks=Ranks(scheduler, ranks, shared, rank) if ranks > 1 else None,
                                    sync=self.sync, trace=self.watch))
            for rank in range(ranks)
        ]  # fmt: skip
        self._shared = shared
        #: ranks that are where choices begin
        self._begun = 0
        #: request and position of the row that stands in each host slot, where the scenario asks for it
        self.stands: dict[int, tuple[float, float]] = {}
        scheduler.state = self._state

    # ---------------------------------------------------------------- what a run is in

    def _state(self) -> bytes:
        """A value that is equal in runs that go on alike."""
        scheduler = self.scheduler
        memory = [
            tensor.numpy().tobytes()
            for driver in self.drivers
            if driver.mirror._worker is not None
            for tensor in (*driver.mirror.host, *driver.mirror.resident)
        ]
        queued = [
            (len(stream._queue), stream._closed)
            for driver in self.drivers
            if driver.mirror._worker is not None and isinstance(stream := driver.mirror.worker.dma_stream, HostStream)
        ]
        threads = tuple(thread.place() for thread in scheduler.threads)
        return digest((self.watch.state(), self.sync.state(), memory, queued, threads, sorted(self._shared.items())))

    def call(self, name: str, what: Callable[[], Any]) -> Any:
        """Enter the mirror; what a thread has seen there matters no more once it is out again."""
        self.scheduler.point("call", name)
        result = what()
        if self.scheduler.current is not None:
            self.scheduler.current.forget()
        return result

    def wrong(self, says: str, breaks: str) -> None:
        """Find something."""
        self.scheduler.find(Finding("wrong row", says, (breaks,)))

    @contextmanager
    def setup(self) -> Iterator[None]:
        """Without choices, until every rank is through: for what comes before what the scenario is about."""
        self._through(-1)
        yield
        self._through(1)
        self.drivers[0].mirror.ranks.barrier()

    def _through(self, ranks: int) -> None:
        """So many more ranks are where choices begin."""
        self._begun += ranks
        self.scheduler.quiet = self._begun < len(self.drivers)

    # ---------------------------------------------------------------- the threads

    def engine(self, body: Callable[[Driver], None]) -> None:
        """The first rank's thread; it starts the others'."""
        self.scheduler.quiet = True
        others = [
            self.scheduler.spawn(f"rank {number}", lambda driver=driver: self._drive(driver, body))  # type: ignore[misc]
            for number, driver in enumerate(self.drivers[1:], 1)
        ]
        self._drive(self.drivers[0], body)
        for thread in others:
            self.scheduler.point("join", thread.name, lambda: thread.done)  # noqa: B023  # called at once

    def _drive(self, driver: Driver, body: Callable[[Driver], None]) -> None:
        driver.mirror.initialize()
        self._watch_copies(driver)
        self._through(1)
        driver.mirror.ranks.barrier()
        try:
            body(driver)
        except Abandon:
            raise
        except self.allows:
            pass
        if len(self.drivers) > 1:  # the end of one rank alone has scenarios of its own
            driver.mirror.ranks.barrier()
            self._through(-1)
        driver.mirror.shutdown()

    def _watch_copies(self, driver: Driver) -> None:
        """A copy to the host is an operation of the scheduler; what the copy stream has seen before matters no more."""
        worker: Any = driver.mirror.worker
        copy = worker._swap

        def watched(*pieces: torch.Tensor) -> None:
            self.scheduler.point("write", "host rows")
            copy(*pieces)
            if self.scheduler.current is not None:
                self.scheduler.current.forget()

        worker._swap = watched

    def close(self) -> None:
        """After the run: the checker's last word."""
        self.watch.close()
