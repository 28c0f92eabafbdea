"""The engine thread's side of a save: reserve, freeze, publish, and hand the writes over."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from palimpsest.actions import action
from palimpsest.errors import BadStepError, PrefixCacheError, ShutdownError, StepConsumedError
from palimpsest.memory import with_ordinary_tensors
from palimpsest.prefix_cache import split, steps
from palimpsest.prefix_cache.interface import KeyLayout
from palimpsest.prefix_cache.publish import PublishSide, Storage
from palimpsest.prefix_cache.recording import recorded
from palimpsest.prefix_cache.records import BudgetTicket, Rows, WriteRecord
from palimpsest.prefix_cache.sizing import plan_memory, require_memory
from palimpsest.prefix_cache.split import SplitOutputs
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.prefix_cache.state import all_reads, logger
from palimpsest.prefix_cache.steps import BegunStep, StepContext, StepRows
from palimpsest.prefix_cache.tasks import WriteTask


class EngineSide(PublishSide):
    """`save_outputs`, its waits, and what undoes it."""

    @recorded
    @with_ordinary_tensors
    def save_outputs(
        self,
        hidden_states: torch.Tensor | None,
        multimodal_outputs: Mapping[str, Any] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
    ) -> int:
        """Save the outputs of the step that was begun; gives its step id, to be consumed exactly once.

        `hidden_states` has a row for each of the step's `num_tokens_unpadded` tokens (or for all
        `num_tokens_padded`), in the batch's order. The live buffers may be overwritten once this returns
        (on an accelerator: by work queued on the current stream). Waits, within the bound, for the last
        step's writes, for bytes of the budget and for a staging page. Until it publishes an error changes
        nothing and the step can be saved again.
        """
        self._check_open()
        if self._controller.has_failed():
            self._commit()
        begun = self._begun
        if begun is None:
            self._check_open()  # shutdown took it
            raise BadStepError("save_outputs without a step: call new_step_starts first")
        rows = steps.read_rows(
            self._view,
            begun.num_scheduled,
            num_tokens_unpadded,
            num_tokens_padded,
            self.config,
            self._shape,
        )
        self._shape = rows.shape
        outputs = self._split(hidden_states, multimodal_outputs or {}, rows, num_tokens_padded)
        storage = self._allocate_keys(outputs)
        if self._join_next_step_tids:
            self._controller.join(self._join_next_step_tids)
        step_id = next(self._step_ids)
        ticket = self._reserve(outputs.deferred)
        try:
            ctx, tasks, closed = self._save_on_page(step_id, rows, outputs, storage)
        except BaseException:
            if ticket is not None and not ticket.holders:
                self._controller.unreserve(ticket.nbytes)
            raise
        self._hand_over(ctx, tasks, closed)
        return step_id

    def _save_on_page(
        self, step_id: int, rows: StepRows, outputs: SplitOutputs, storage: Storage
    ) -> tuple[StepContext, list[WriteTask], list[int]]:
        holder = StagingBufferHolder.for_step(step_id)
        page = self._controller.staging.claim(holder)
        ctx: StepContext | None = None
        try:
            ctx = self.freeze(step_id, page, rows, outputs, storage)
            return ctx, *self.publish(ctx, outputs, storage)
        except BaseException:
            # A copy that is under way still uses the page; one that does not land, or of which the device cannot tell,
            # keeps it. Either way the first error is the one to tell.
            with suppress(Exception):
                self._copies.settle()
                if ctx is not None and ctx.d2h.event is not None:
                    ctx.d2h.event.synchronize()  # it has landed, which this reports
                self._controller.staging.release_page(page, [holder])
            raise

    def _split(self, hidden: torch.Tensor | None, mm: Mapping[str, Any], rows: StepRows, padded: int) -> SplitOutputs:
        shape = rows.shape
        return self._split_step_outputs(
            hidden,
            mm,
            shape.count,
            padded,
            slots_cpu=rows.slots,
            req_order=shape.req_order,
            bounds=shape.bounds,
        )

    def _split_step_outputs(
        self,
        hidden: torch.Tensor | None,
        mm: Mapping[str, Any],
        n: int,
        padded: int,
        *,
        slots_cpu: torch.Tensor,
        req_order: list[str],
        num_sched: Mapping[str, int] | None = None,
        query_start: Mapping[str, int] | None = None,  # noqa: ARG002  upstream's signature
        bounds: list[int] | None = None,
    ) -> SplitOutputs:
        """A step's outputs by what becomes of them; each request's rows by `bounds`, or by `num_sched`
        (then `query_start` follows from it)."""
        if bounds is None:
            bounds = [0, *itertools.accumulate((num_sched or {}).get(req_id, 0) for req_id in req_order)]
        immediate, deferred, leftover = split.split_outputs(
            hidden, mm, n, padded, self._policy, self._pool.layouts, self.config.layouts
        )
        record = WriteRecord(slots_cpu, deferred) if deferred else None
        return SplitOutputs(immediate, leftover, record, req_order, bounds)

    def _allocate_keys(self, outputs: SplitOutputs) -> dict[str, torch.Tensor]:
        """Storage for the keys that this step saves for the first time, not yet installed.

        Raises `HostMemoryError` before anything is allocated.
        """
        deferred = outputs.deferred.tensors if outputs.deferred is not None else {}
        known = self._pool.layouts.keys()
        if known >= outputs.immediate.keys() and known >= deferred.keys():
            return {}
        immediate = self._new_layouts(outputs.immediate)
        new = {**immediate, **self._new_layouts(deferred)}
        plan = plan_memory(self.config, new, immediate, pinned=self._pinned)
        require_memory(plan, f"new keys {sorted(new)}")
        logger.info("prefix cache: keys %s take %s", sorted(new), plan)
        return {key: self._pool.allocate(layout) for key, layout in new.items()}

    def _new_layouts(self, rows: Rows) -> dict[str, KeyLayout]:
        return {key: KeyLayout.of(value) for key, value in rows.items() if not self._pool.has_key(key)}

    # ------------------------------------------------------------------ budget

    def _reserve(self, deferred: WriteRecord | None) -> BudgetTicket | None:
        """Charge the clones of a step's deferred rows, flushing the oldest ones while they do not fit."""
        if deferred is None:
            return None
        ticket = BudgetTicket(sum(rows.nbytes for rows in deferred.tensors.values()))
        while not self._controller.reserve(ticket.nbytes):
            if self._flush_oldest():
                continue
            # Nothing is left to flush: what was missing has come free since.
            if self._controller.reserve(ticket.nbytes):
                break
            raise PrefixCacheError(f"{ticket.nbytes} bytes do not fit the budget, and no task holds a clone")
        deferred.budget = ticket
        return ticket

    def _flush_oldest(self) -> bool:
        """Write the oldest deferred rows; False when no task is left to write any."""
        tids = self.seal_oldest()
        if not tids:
            return False
        self._controller.escalate(tids)
        self._controller.join(tids)
        self.stats.flushes += 1
        self._commit()
        return True

    @action("seal_oldest")
    def seal_oldest(self) -> list[int]:
        """Close the open deferred tasks that hold the oldest rows; gives the tasks to flush: these, or all that are
        unfinished where none is open."""
        with self._state_lock, self._controller.lock:
            self._check_open()
            sealed = self._request_tasks.seal_oldest()
            flushed = sealed or self._controller.unfinished_tids()
            if self._trace is not None:
                self._trace.emit("seal_oldest", {}, {"sealed": sealed, "flushed": flushed})
            return flushed

    # ------------------------------------------------------------------ hand over

    def _hand_over(self, ctx: StepContext, tasks: list[WriteTask], closed: list[int]) -> None:
        """Give a published step's tasks to the committer; on an error the step is gone (fail-stop)."""
        try:
            if tasks:
                self._controller.dispatch(tasks)
            if closed:
                self._controller.escalate(closed)
        except BaseException:
            with suppress(ShutdownError, StepConsumedError):  # shutdown has released the step already
                self.discard_step(ctx.step_id)
            raise
        if ctx.hits:
            counts = dict(zip(ctx.rows.shape.req_order, ctx.rows.shape.counts, strict=True))
            self._prefetch(BegunStep(counts, ctx.hits, {}, ctx.reads, ctx.hit_prefetch))

    @action("discard_step")
    def discard_step(self, step_id: int) -> None:
        """Consume a saved step without its outputs. Raises `StepConsumedError` when it was consumed."""
        with self._state_lock:
            self._check_open()
            ctx = steps.find_step(self._step_ctxs, step_id)
            del self._step_ctxs[step_id]
            dropped = self._hits.drop_all(all_reads(ctx.reads))
            if self._trace is not None:
                post = {"dropped": dropped, "steps": list(self._step_ctxs)}
                self._trace.emit("discard_step", {"step": step_id}, post)
        self._leave_page(ctx)
