"""Where every lock, condition, event, thread, executor and clock of the package comes from.

One object is injected; the default is the standard library, at no cost. A scheduler that implements
`Sync` can drive the real code one primitive at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol


class LockLike(Protocol):
    """A lock that is not re-entrant."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc: Any) -> None: ...


class Sync(Protocol):
    """The primitives that the package is built on."""

    def lock(self) -> LockLike: ...
    def condition(self, lock: LockLike) -> threading.Condition: ...
    def event(self) -> threading.Event: ...
    def thread(self, target: Callable[[], None], name: str) -> threading.Thread: ...
    def executor(self, name: str) -> Executor: ...
    def now(self) -> float: ...
    def pause(self, seconds: float) -> None: ...
    def thread_name(self) -> str: ...


class StandardSync:
    """The primitives of the standard library."""

    lock = staticmethod(threading.Lock)
    event = staticmethod(threading.Event)
    now = staticmethod(time.monotonic)
    pause = staticmethod(time.sleep)

    def condition(self, lock: LockLike) -> threading.Condition:
        """A condition on `lock`."""
        return threading.Condition(lock)  # type: ignore[arg-type]  # typeshed names the concrete lock

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A daemon thread, not yet started."""
        return threading.Thread(target=target, name=name, daemon=True)

    def executor(self, name: str) -> Executor:
        """An executor of one thread whose name starts with `name`."""
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def thread_name(self) -> str:
        """The name of the calling thread."""
        return threading.current_thread().name


STANDARD: Sync = StandardSync()


class Deadline:
    """A bound on a wait: how long is left, on the injected clock."""

    def __init__(self, sync: Sync, seconds: float) -> None:
        self._sync, self.seconds, self._end = sync, seconds, sync.now() + seconds

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._sync.now())
