"""Real threads that run one at a time. Before each operation on a primitive or on shared rows, and right after those
that let others go on, a strategy chooses who does.

A thread that comes to an operation parks until it is chosen; an operation that has to wait says when it is ready.
Time is logical: a bounded wait ends by time-out only where that is chosen, as often as the scenario says. The clock
does not move otherwise, so that a run depends on nothing but the choices. Where only time-outs are left and none may be
chosen any more, nobody can go on: what should have ended the wait was lost.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Hashable
from typing import Protocol

from .finding import Finding
from .threads import FAILS, GOES, LATE, Abandon, Operation, Option, Step, Thread

#: the lock that must never cover a wait
STATE_LOCK = "the state lock"


class Strategy(Protocol):
    """Chooses at each point of a run."""

    @property
    def spends(self) -> bool:
        """Whether options that cost something may be chosen."""

    @property
    def fine(self) -> bool:
        """Whether others may go on also right after a lock is released, an event set or a job submitted: what the
        thread does from there to its next operation is guarded by nothing."""

    def choose(self, options: list[Option], position: int, state: Callable[[], Hashable]) -> Option | None:
        """One of two options or more, at the step of this number; None to leave the run. `state` gives a value that
        is equal in runs that go on alike."""


class Scheduler:
    """The threads of one run. Primitives call `point`; outside of `run` it lets everything pass."""

    def __init__(self, strategy: Strategy, *, faults: int = 0, timeouts: int = 0, most_steps: int = 20_000) -> None:
        self.threads: list[Thread] = []
        self.clock = 0.0
        self.steps: list[Step] = []
        self.finding: Finding | None = None
        #: whether the strategy left the run
        self.left = False
        #: while true, nothing is chosen: who runs goes on until it has to wait
        self.quiet = False
        #: operations that may still be made to fail, and waits that may still be made to run out
        self.faults, self.timeouts = faults, timeouts
        #: what a waiting thread waits for, told by the primitives: (name, holder) of each lock that is held
        self.held: Callable[[], list[tuple[str, str]]] = list
        #: what went wrong with the choosing itself; `run` raises it
        self.broken: Exception | None = None
        self.state: Callable[[], Hashable] = lambda: None
        self.current: Thread | None = None
        #: steps taken, other than of threads that poll; events of the protocol
        self.moves = self.events = 0
        self._strategy, self._most_steps = strategy, most_steps
        self._over = False
        self._end = _thread.allocate_lock()
        self._end.acquire()

    # ---------------------------------------------------------------- threads

    def spawn(self, name: str, body: Callable[[], None], daemon: bool = False) -> Thread:
        """A thread that waits for its first turn. The run does not wait for a daemon."""
        names = {thread.name for thread in self.threads}
        thread = Thread(name if name not in names else f"{name}-{len(self.threads)}", len(self.threads), daemon)
        self.threads.append(thread)
        _thread.start_new_thread(self._live, (thread, body))
        return thread

    def _live(self, thread: Thread, body: Callable[[], None]) -> None:
        thread.turn.acquire()
        try:
            if not self._over:
                body()
        except Abandon:
            pass
        except BaseException as error:  # a thread of a run must not end unseen
            self.find(Finding.of_error(thread.name, error))
        thread.done, thread.frame = True, None
        self._leave(thread)

    def run(self) -> None:
        """Run all threads to their ends, or until something is found; then no thread is left. Raises what the
        strategy raised."""
        first = self._choose(None) or self._sent_home()
        if first is not None:
            self._resume(first)
            self._end.acquire()
        self.current = None
        self._over = True
        if self.broken is not None:
            raise self.broken

    # ---------------------------------------------------------------- points

    @property
    def over(self) -> bool:
        """Whether the run is over: its threads are being sent home."""
        return self._over

    def point(
        self,
        what: str,
        on: str,
        ready: Callable[[], bool] | None = None,
        *,
        seconds: float | None = None,
        may_fail: bool = False,
        yields: bool = False,
        fine: bool = False,
    ) -> str:
        """Park the calling thread at an operation until it is chosen; gives how it goes on. A `fine` one is a choice
        for fine strategies only."""
        me = self.current
        if me is None or self._over:
            return self._outside(what, on, ready)
        strategy = self._strategy
        passes = self.quiet or not (strategy.spends or yields) or (fine and not strategy.fine)
        if passes and (ready is None or ready()):
            self._note(Step(me.name, GOES, what, on))
            return GOES
        ends = None if seconds is None else self.clock + seconds
        me.operation = Operation(what, on, ready, ends, may_fail, yields)
        me.frame = sys._getframe(1)
        option = self._choose(me)
        if option is None:
            raise Abandon
        if option.thread is not me:
            self._resume(option)
            me.turn.acquire()
        me.frame = None
        self._go_on()
        return self.steps[-1].how

    def wait(self, on: str, ready: Callable[[], bool], seconds: float | None = None) -> str:
        """As `point`, to wait for what another thread does: nobody may do so while he holds the state lock."""
        if self.current is not None and (STATE_LOCK, self.current.name) in self.held():
            says = f"{self.current.name} waits for {on} while it holds {STATE_LOCK}"
            self.find(Finding("wait under lock", says, ("NoWaitUnderLock",)))
        return self.point("wait for", on, ready, seconds=seconds)

    def _go_on(self) -> None:
        if self._over:
            raise Abandon

    def _outside(self, what: str, on: str, ready: Callable[[], bool] | None) -> str:
        """An operation of no thread of the run: before it, after it, or while its threads are sent home."""
        if self.current is not None:
            raise Abandon
        if ready is not None and not ready():
            raise RuntimeError(f"{what} {on}: would wait, and no thread runs")
        return GOES

    def settle(self) -> None:
        """Wait until no other thread can go on."""
        me = self.current
        self.point("settle", "", lambda: not any(self._can_go(other) for other in self.threads if other is not me))

    def find(self, finding: Finding) -> None:
        """Note what was found, if it is the first thing, and end the run at the next point."""
        if self.finding is None and not self._over:
            self.finding = finding
        self._over = True

    # ---------------------------------------------------------------- choosing

    def _can_go(self, thread: Thread) -> bool:
        return self._how(thread) is not None

    def _how(self, thread: Thread) -> str | None:
        """How a thread would go on that is chosen now; None for one that cannot."""
        if thread.done:
            return None
        operation = thread.operation
        if operation.ready is None or operation.ready():
            return GOES
        return LATE if operation.ends is not None and operation.ends <= self.clock else None

    def _options(self, me: Thread | None) -> list[Option]:
        """How the run can go on; to go on with the thread that runs comes first and costs nothing."""
        threads = self.threads if me is None else [me, *(other for other in self.threads if other is not me)]
        takes_over = False
        options, late = [], []
        for thread in threads:
            how = self._how(thread)
            if how is not None:
                options.append(Option(thread, how, takes_over, takes_over))
                if thread.operation.may_fail and self.faults and not self.quiet:
                    options.append(Option(thread, FAILS, takes_over + 1, takes_over))
            elif self.timeouts and not (thread.done or thread.operation.ends is None or self.quiet):
                late.append(Option(thread, LATE, takes_over + 1, takes_over))
            if thread is me:
                takes_over = how is not None and not thread.operation.yields
        return options + late if options else [option._replace(cost=0) for option in late]

    def _choose(self, me: Thread | None) -> Option | None:
        """The next step, noted; None where the run is over."""
        if self._over:
            return None
        options = self._options(me)
        if not options:
            self._stuck()
            return None
        many = len(options) > 1 and not self.quiet
        option = self._ask(options) if many else options[0]
        if option is None:
            self._over = True
            return None
        self._take(option)
        return option

    def _ask(self, options: list[Option]) -> Option | None:
        """The strategy's choice. It is asked in a thread of the code that is run, which must not see its errors."""
        try:
            option = self._strategy.choose(options, len(self.steps), self.state)
        except Exception as error:
            self.broken = error
            return None
        self.left = option is None
        return option

    def _take(self, option: Option) -> None:
        thread, how = option.thread, option.how
        operation = thread.operation
        if how == FAILS:
            self.faults -= 1
        elif how == LATE and operation.ends is not None and operation.ends > self.clock:
            self.timeouts, self.clock = max(0, self.timeouts - 1), operation.ends
        self._note(Step(thread.name, how, operation.what, operation.on))

    def _note(self, step: Step) -> None:
        if step.what != "pause":
            self.moves += 1
        self.steps.append(step)
        if len(self.steps) == self._most_steps:
            self.find(Finding("livelock", f"no end after {self._most_steps} steps; {'; '.join(self._where())}"))

    def _stuck(self) -> None:
        """Nobody can go on: what is found, unless only daemons are left."""
        if all(thread.daemon for thread in self.threads if not thread.done):
            self._over = True
            return
        held = [f"{name} is held by {holder}" for name, holder in self.held()]
        self.find(Finding("deadlock", f"nobody can go on: {'; '.join(self._where() + held)}"))

    def _where(self) -> list[str]:
        return [f"{thread.name} at: {thread.operation}" for thread in self.threads if not thread.done]

    # ---------------------------------------------------------------- turns

    def _resume(self, option: Option) -> None:
        self.current = option.thread
        option.thread.turn.release()

    def _leave(self, thread: Thread) -> None:
        """Give the turn of a thread that is done to the next one, or end the run."""
        option = self._choose(thread) or self._sent_home()
        if option is None:
            self._end.release()
        else:
            self._resume(option)

    def _sent_home(self) -> Option | None:
        """The turn of a thread that is left when the run is over: it ends at once."""
        left = next((thread for thread in self.threads if not thread.done), None)
        return None if left is None else Option(left, GOES, 0)
