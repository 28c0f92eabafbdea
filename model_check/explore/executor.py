"""An executor of one thread, and its futures, as operations of a scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from .scheduler import Scheduler
from .threads import Abandon, Thread


class CoFuture(Future[Any]):
    """The result of a job of an executor."""

    def __init__(self, scheduler: Scheduler, name: str, job: Callable[[], Any]) -> None:
        # not Future's own constructor: it makes a real condition
        self._scheduler, self.name, self.job = scheduler, name, job
        self.stage = "pending"
        self._outcome: Any = None
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"{self.name}, {self.stage}"

    def cancel(self) -> bool:
        """Give the job up, if nobody has begun it."""
        self._scheduler.point("cancel", self.name)
        if self.stage == "pending":
            self.stage = "cancelled"
        return self.stage == "cancelled"

    def cancelled(self) -> bool:
        """Whether the job was given up."""
        return self.stage == "cancelled"

    def running(self) -> bool:
        """Whether the job is being done."""
        return self.stage == "running"

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.stage in ("cancelled", "finished")

    def result(self, timeout: float | None = None) -> Any:
        """What the job gave, or its error. Raises `TimeoutError` when that took too long."""
        self._scheduler.wait(self.name, self.done, timeout)
        if not self.done():
            raise TimeoutError
        if self.stage == "cancelled":
            raise CancelledError
        if self.error is not None:
            raise self.error
        return self._outcome

    def run(self) -> None:
        """Do the job, unless it was given up."""
        if self.stage != "pending":
            return
        self.stage = "running"
        try:
            self._outcome = self.job()
        except Abandon:
            raise
        except BaseException as error:  # the job's error is the future's
            self.error = error
        self._scheduler.point("finish", self.name)
        self.stage = "finished"


class CoExecutor(Executor):
    """An executor of one thread, which is there from the first job on."""

    def __init__(self, scheduler: Scheduler, name: str, futures: list[CoFuture]) -> None:
        self._scheduler, self.name, self._futures = scheduler, name, futures
        self._jobs: deque[CoFuture] = deque()
        self._thread: Thread | None = None
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CoFuture:
        """Queue a job."""
        self._scheduler.point("submit to", self.name)
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = CoFuture(self._scheduler, f"job {len(self._futures) + 1}", lambda: fn(*args, **kwargs))
        self._futures.append(future)
        self._jobs.append(future)
        if self._thread is None:
            self._thread = self._scheduler.spawn(self.name, self._work)
        self._scheduler.point("has submitted to", self.name, fine=True)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs; with `wait` until the thread has ended."""
        self._scheduler.point("shut down", self.name)
        self._closed = True
        for future in self._jobs if cancel_futures else ():
            if future.stage == "pending":
                future.stage = "cancelled"
        thread = self._thread
        if wait and thread is not None:
            self._scheduler.point("join", self.name, lambda: thread.done)

    def _work(self) -> None:
        me = self._scheduler.current
        assert me is not None
        while True:
            self._scheduler.point("wait for", "a job", lambda: bool(self._jobs) or self._closed)
            if not self._jobs:
                return
            self._jobs.popleft().run()
            me.forget()
