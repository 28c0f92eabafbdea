"""The prefix cache as a runner sees it: begin a step, save its outputs, consume them.

One engine thread calls `new_step_starts` and `save_outputs` (`engine`); any thread may consume a saved step
with `materialize` or `discard_step` (`builder`), also while the engine is in a later step. What both sides
share is in `state`.
"""

from __future__ import annotations

from concurrent.futures import Future

from palimpsest.actions import action
from palimpsest.errors import ConfigRefusedError, InvariantError, WaitTimeoutError
from palimpsest.prefix_cache.builder import BuilderSide
from palimpsest.prefix_cache.interface import ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.publish import snapshot_leftover
from palimpsest.prefix_cache.split import is_step_token_tensor
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.prefix_cache.state import PREFETCH_NAME, all_reads
from palimpsest.prefix_cache.steps import GroupView
from palimpsest.sync import STANDARD, Deadline, Sync
from palimpsest.trace import Sink

__all__ = ["PREFETCH_NAME", "OmniPrefixCacheManager", "PrefixCacheManager"]

_is_step_token_tensor = is_step_token_tensor
_snapshot_leftover_mm_cpu = snapshot_leftover


class PrefixCacheManager(BuilderSide):
    """A cache of the hidden states and multimodal rows of reused prompt prefixes.

    `config` sizes it, `view` tells the batch's requests and slots. `eager` writes on the engine thread;
    otherwise a committer thread does; None (the default) means eager exactly when there is no accelerator.
    `sync` gives the primitives, `trace` takes one event per action of the protocol. Call
    `register_policy` before the first step and `shutdown` at the end.

    Every method raises `ShutdownError` after `shutdown`. After a write failed, every method but
    `discard_step` and `shutdown` raises `WriteFailedError`. Raises `HostMemoryError` when the host has not
    the memory that the configuration's declared keys take.
    """

    def __init__(
        self,
        config: PrefixCacheConfig,
        view: GroupView,
        eager: bool | None = None,
        *,
        sync: Sync = STANDARD,
        trace: Sink | None = None,
    ) -> None:
        super().__init__(config, view, eager, sync, trace)

    def register_policy(self, policy: ModelCachePolicy) -> None:
        """Use `policy` from the next step on. Raises `ConfigRefusedError` for what is none."""
        if not isinstance(policy, ModelCachePolicy):
            raise ConfigRefusedError(f"the policy is {policy!r:.80}, and must be a ModelCachePolicy")
        self._policy = policy

    # ------------------------------------------------------------------ epochs

    @action("reset")
    def reset(self) -> None:
        """Start a new epoch: nothing saved so far can be read, and writes in flight never become visible.

        For a weight update or a sleep. Live requests go on as new generations. A read planned before raises where
        it still needs rows of the pool; rows that were staged or preserved for it are delivered as planned.
        """
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            with self._controller.lock:
                self._slot_status.reset()
                if self._guard is not None:
                    self._guard.forgotten(self._pool)
                self._controller.abandon_all()
                sealed = self._request_tasks.renew()
                if self._trace is not None:
                    self._trace.emit("reset", {}, {"sealed": sealed})
        if sealed:
            self._controller.escalate(sealed)

    # ------------------------------------------------------------------ the end

    def shutdown(self) -> None:
        """Stop the cache within the bound: waiters are woken with an error, threads joined, all released.

        Idempotent. Raises `WaitTimeoutError` naming a thread that a stuck copy keeps; its memory stays.
        """
        if not self.shutdown_begin():
            return
        stuck = self._controller.shutdown() + self._stop_prefetch()
        self.shutdown_end()
        if stuck:
            raise WaitTimeoutError(
                f"threads {stuck} did not end within {self.config.staging_claim_timeout_s:g} s of shutdown; the "
                "memory that they use is kept"
            )

    @action("shutdown_begin")
    def shutdown_begin(self) -> bool:
        """Refuse later calls, and a page to a save that waits for one; False when that was done before."""
        with self._state_lock:
            was_closed, self._closed = self._closed, True
            self._controller.staging.close()
            if self._trace is not None and not was_closed:
                self._trace.emit("shutdown_begin", {}, {})
            return not was_closed

    @action("shutdown_end")
    def shutdown_end(self) -> None:
        """Release what steps and reads still hold."""
        with self._state_lock:
            self.drain()
            dropped = self._drop_begun()
            contexts = list(self._step_ctxs.values())
            self._step_ctxs.clear()
            dropped += self._hits.drop_all(list(self._hits.pending))
            self._request_tasks.end(list(self._request_tasks.live))
            if self._trace is not None:
                post = {"dropped": dropped, "steps": [ctx.step_id for ctx in contexts]}
                self._trace.emit("shutdown_end", {}, post)
        for ctx in contexts:
            self._leave_page(ctx)

    def _stop_prefetch(self) -> list[str]:
        last: Future[None] = self._prefetch_pool.submit(lambda: None)
        try:
            deadline = Deadline(self._sync, self.config.staging_claim_timeout_s)
            self._controller.slow.result(last, deadline, lambda: f"shutdown waits for {PREFETCH_NAME} to end a read")
            ended = True
        except TimeoutError:
            ended = False
        self._prefetch_pool.shutdown(wait=ended, cancel_futures=True)
        return [] if ended else [PREFETCH_NAME]

    # ------------------------------------------------------------------ conservation

    def check_invariants(self) -> None:
        """Raise `InvariantError` when structures disagree, or something is held although all is quiet.

        To be called while no other thread is inside the cache.
        """
        with self._state_lock:
            wrong = self._slot_status.check() + self._hits.pending.check() + self._controller.check()
            reads = {read for ctx in self._step_ctxs.values() for read in all_reads(ctx.reads)}
            reads |= set(all_reads(self._begun.reads)) if self._begun is not None else set()
            wrong += [f"read {read.rid} is pending without a step" for read in self._hits.pending if read not in reads]
            known = {StagingBufferHolder.for_step(step_id) for step_id in self._step_ctxs}
        wrong += [
            f"{held}, which was consumed"
            for held, holder in self._controller.staging.holds()
            if holder.kind == "step" and holder not in known
        ]
        if wrong:
            raise InvariantError("; ".join(wrong))


OmniPrefixCacheManager = PrefixCacheManager
