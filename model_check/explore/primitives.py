"""The primitives that `palimpsest.sync` declares, as operations of a scheduler.

Each does at once what its operation says when its thread is chosen: nothing happens between two points.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from palimpsest.sync import LockLike

from .executor import CoExecutor, CoFuture
from .scheduler import Scheduler
from .threads import LATE, Thread

Made = TypeVar("Made", "CoLock", "CoCondition", "CoEvent")

#: a thread that polls sleeps until another one has moved, or this long
_SLEEP_S = 3600.0


class CooperativeSync:
    """Gives the primitives of one run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._made: list[CoLock | CoCondition | CoEvent] = []
        self._locks: list[CoLock] = []
        self.futures: list[CoFuture] = []
        self._numbers = itertools.count(1)
        scheduler.held = self.held

    def lock(self) -> CoLock:
        """A lock; the caller names it."""
        lock = self._keep(CoLock(self._scheduler, f"lock {next(self._numbers)}"))
        self._locks.append(lock)
        return lock

    def condition(self, lock: LockLike) -> Any:
        """A condition on a lock of this provider."""
        assert isinstance(lock, CoLock)
        return self._keep(CoCondition(self._scheduler, lock, f"condition {next(self._numbers)}"))

    def event(self) -> Any:
        """An event, called what the function that asks for it is called, and its task's number."""
        frame = sys._getframe(1)
        number = getattr(frame.f_locals.get("self"), "tid", None)
        name = f"event {next(self._numbers)}" if number is None else f"{frame.f_code.co_name} of task {number}"
        return self._keep(CoEvent(self._scheduler, name))

    def thread(self, target: Callable[[], None], name: str) -> Any:
        """A thread, not yet started."""
        return CoThread(self._scheduler, target, name)

    def executor(self, name: str) -> CoExecutor:
        """An executor of one thread."""
        return CoExecutor(self._scheduler, name, self.futures)

    def now(self) -> float:
        """The logical clock."""
        return self._scheduler.clock

    def pause(self, seconds: float) -> None:  # noqa: ARG002  how long it is says the scheduler
        """Let others move."""
        moves = self._scheduler.moves
        self._scheduler.point("pause", "", lambda: self._scheduler.moves > moves, seconds=_SLEEP_S)

    def thread_name(self) -> str:
        """The name of the calling thread."""
        current = self._scheduler.current
        return current.name if current is not None else "main"

    def held(self) -> list[tuple[str, str]]:
        """The locks that are held, and by whom."""
        return [(lock.name, lock.owner) for lock in self._locks if lock.owner is not None]

    def state(self) -> Hashable:
        """What the primitives are in."""
        return (*(made.state() for made in self._made), *(future.stage for future in self.futures))

    def _keep(self, made: Made) -> Made:
        self._made.append(made)
        return made


class CoLock:
    """A lock that is not re-entrant."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler, self.name = scheduler, name
        self.owner: str | None = None
        self._seen = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False when it was not to be had in time."""
        seconds = None if timeout < 0 else timeout
        ready = self.is_free if blocking else None
        if self._scheduler.point("acquire", self.name, ready, seconds=seconds) == LATE or not self.is_free():
            return False
        self.taken()
        return True

    def taken(self) -> None:
        """It is the calling thread's from now on."""
        current = self._scheduler.current
        self.owner = current.name if current is not None else "main"
        self._seen = len(current.seen) if current is not None else 0

    def release(self) -> None:
        """Let go of the lock. Raises `RuntimeError` where nobody has it."""
        if self.owner is None and not self._scheduler.over:
            raise RuntimeError(f"{self.name}: released, and nobody has it")
        self.owner = None
        current = self._scheduler.current
        if current is not None and len(current.seen) == self._seen:
            # Nothing was logged of what was seen: it depends on what had happened by then.
            current.seen.append(self._scheduler.events)
        self._scheduler.point("released", self.name, fine=True)

    def locked(self) -> bool:
        """Whether somebody holds the lock."""
        return self.owner is not None

    def is_free(self) -> bool:
        """Whether nobody holds the lock."""
        return self.owner is None

    def state(self) -> Hashable:
        return self.owner

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: Any) -> None:
        self.release()


class CoCondition:
    """A condition on a lock."""

    def __init__(self, scheduler: Scheduler, lock: CoLock, name: str) -> None:
        self._scheduler, self._lock, self.name = scheduler, lock, name
        #: who waits, first come first; a notified one has left
        self._waiting: list[str] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock, wait to be notified, take the lock again; False when that took too long. Raises
        `RuntimeError` where the caller does not have it."""
        name = self._check_mine()
        self._waiting.append(name)
        self._lock.owner = None  # nothing to remember: who is woken looks again
        self._scheduler.wait(self.name, lambda: self._may_return(name), timeout)
        notified = name not in self._waiting
        if not notified:
            self._waiting.remove(name)
        if self._lock.is_free():
            self._lock.taken()
        else:
            self._lock.acquire()
        return notified

    def _check_mine(self) -> str:
        """The caller's name, who must have the lock."""
        me = self._scheduler.current
        name = me.name if me is not None else "main"
        if self._lock.owner != name:
            raise RuntimeError(
                f"{self.name}: used by {name}, and {self._lock.name} is {self._lock.owner or 'nobody'}'s"
            )
        return name

    def _may_return(self, name: str) -> bool:
        return name not in self._waiting and self._lock.is_free()

    def notify(self, n: int = 1) -> None:
        """Wake those who have waited longest. Raises `RuntimeError` where the caller does not have the lock."""
        self._check_mine()
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Wake all who wait."""
        self.notify(len(self._waiting))

    def state(self) -> Hashable:
        return tuple(self._waiting)

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._lock.__exit__(*exc)


class CoEvent:
    """A flag that is set once."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler, self.name, self._flag = scheduler, name, False

    def is_set(self) -> bool:
        """Whether the event was set."""
        return self._flag

    def set(self) -> None:
        """Wake all who wait."""
        self._scheduler.point("set", self.name)
        self._flag = True
        self._scheduler.point("has set", self.name, fine=True)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set; False when that took too long."""
        self._scheduler.wait(self.name, self.is_set, timeout)
        return self._flag

    def state(self) -> Hashable:
        return self._flag


class CoThread:
    """A thread of the package."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str) -> None:
        self._scheduler, self._target, self.name = scheduler, target, name
        self._thread: Thread | None = None

    def start(self) -> None:
        """Let the thread be chosen from now on."""
        self._thread = self._scheduler.spawn(self.name, self._target)

    def is_alive(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread is not None and not self._thread.done

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or the time is up."""
        self._scheduler.point("join", self.name, lambda: not self.is_alive(), seconds=timeout)
