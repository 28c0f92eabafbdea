"""The output builder: a thread that consumes saved steps behind the engine and shows them to the oracle."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.runners.reference.oracle import Oracle
from palimpsest.runners.reference.plan import Share
from palimpsest.runners.reference.requests import Sequence


@dataclass(frozen=True)
class SavedStep:
    """A saved step: whose rows are wanted, and which sequences can be judged once it is consumed."""

    step_id: int
    shares: list[Share]
    ended: list[Sequence]


class OutputBuilder:
    """Materializes steps in order, on a thread of its own; at most `depth` steps wait for it.

    Its first error is raised by the next call from the engine; steps that come after it are discarded.
    """

    def __init__(self, cache: PrefixCacheManager, oracle: Oracle, depth: int, timeout_s: float) -> None:
        self._cache, self._oracle, self._timeout_s = cache, oracle, timeout_s
        self._steps: queue.Queue[SavedStep | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reference-builder", daemon=True)
        self._thread.start()

    def put(self, step: SavedStep) -> None:
        """Hand over a step; waits while `depth` steps are waiting. Raises what the builder ran into."""
        self.check()
        self._put(step)

    def close(self) -> None:
        """Wait until every step is consumed. Raises what the builder ran into."""
        self._stop()
        self.check()

    def abandon(self, cause: BaseException) -> None:
        """Stop because of `cause`; steps that wait are discarded."""
        self._error = self._error or cause
        self._stop()

    def _stop(self) -> None:
        self._put(None)
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the output builder did not end within {self._timeout_s:g} s")

    def check(self) -> None:
        """Raise what the builder ran into, if anything."""
        if self._error is not None:
            raise RuntimeError("the output builder failed") from self._error

    def _put(self, step: SavedStep | None) -> None:
        try:
            self._steps.put(step, timeout=self._timeout_s)
        except queue.Full:
            raise TimeoutError(f"the output builder took no step within {self._timeout_s:g} s") from None

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            try:
                if self._error is None:
                    self._build(step)
                else:
                    self._cache.discard_step(step.step_id)
            except BaseException as error:  # raised on the engine's thread, by `check`
                self._error = self._error or error

    def _build(self, step: SavedStep) -> None:
        if step.shares:
            outputs = self._cache.materialize(step.step_id, [share.req_id for share in step.shares])
            for share in step.shares:
                self._oracle.take(share, outputs)
        else:
            self._cache.discard_step(step.step_id)
        for sequence in step.ended:
            self._oracle.judge(sequence)
