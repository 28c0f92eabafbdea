"""Warnings of waits that last: who waits for whom, long before the wait's bound raises. Few of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from palimpsest.sync import Deadline

logger = logging.getLogger("palimpsest.prefix_cache")

T = TypeVar("T")

#: at most one message of a kind in this many seconds
EVERY_S = 10.0


class RateLimit:
    """Lets one message pass in `EVERY_S` seconds, and counts those that it held back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next, self._held_back = 0.0, 0

    def passes(self) -> str | None:
        """What to write behind a message that may be logged now: how many were not; None when it may not be."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                self._held_back += 1
                return None
            held_back, self._next, self._held_back = self._held_back, now + EVERY_S, 0
        return f" ({held_back} more were not logged)" if held_back else ""


class SlowWaits:
    """Waits within a deadline, with a warning after `after_s` seconds; 0 for none."""

    def __init__(self, after_s: float) -> None:
        self.after_s, self._limit = after_s, RateLimit()

    def within(self, deadline: Deadline, wait: Callable[[float], bool], says: Callable[[], str]) -> bool:
        """What `wait`, given seconds, says within the deadline."""
        if 0 < self.after_s < deadline.left():
            if wait(self.after_s):
                return True
            self.warn(says(), deadline)
        return wait(deadline.left())

    def result(self, future: Future[T], deadline: Deadline, says: Callable[[], str]) -> T:
        """What `future` gives, or its error. Raises `TimeoutError` where it is not done within the deadline."""
        if 0 < self.after_s < deadline.left():
            try:
                return future.result(self.after_s)
            except TimeoutError:
                if future.done():  # meanwhile, or the error is its own
                    return future.result()
            self.warn(says(), deadline)
        try:
            return future.result(deadline.left())
        except TimeoutError:
            if future.done():
                return future.result()
            raise

    def warn(self, says: str, deadline: Deadline) -> None:
        """Log that a wait lasts, if the rate allows it."""
        if (left_out := self._limit.passes()) is not None:
            logger.warning(
                "prefix cache: waiting for more than %g s: %s; it raises after %g s%s",
                self.after_s, says, deadline.seconds, left_out,
            )  # fmt: skip
