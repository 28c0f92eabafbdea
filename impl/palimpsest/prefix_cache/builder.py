"""The builder thread's side: consume a saved step, exactly once."""

from __future__ import annotations

from collections.abc import Collection

import torch

from palimpsest.actions import action
from palimpsest.errors import BadStepError, WaitTimeoutError
from palimpsest.memory import with_ordinary_tensors
from palimpsest.prefix_cache import steps
from palimpsest.prefix_cache.engine import EngineSide
from palimpsest.prefix_cache.interface import HIDDEN_KEY
from palimpsest.prefix_cache.merge import StepOutputs, append_rows, pass_through, rows_by_request
from palimpsest.prefix_cache.state import all_reads
from palimpsest.prefix_cache.steps import StepContext
from palimpsest.prefix_cache.tasks import Rows


class BuilderSide(EngineSide):
    """`materialize`, which any thread may call while the engine is in a later step."""

    @with_ordinary_tensors
    def materialize(self, step_id: int, req_ids: Collection[str]) -> StepOutputs:
        """The outputs of a saved step for `req_ids`: `[prefix rows of the hit | rows of this step]`.

        A key that the step did not produce is not delivered. The outputs are on the host, belong to the
        caller, and alias neither the cache's memory nor another request's rows. Raises
        `StepConsumedError` when the step was consumed, `BadStepError` for a request that the step does
        not have (the step can still be consumed), and what a fetch raises (the step is then consumed).
        """
        self._check_open()
        ctx = self.take_step(step_id, req_ids)
        try:
            rows = self._copy_out(ctx)
            return self._merge(ctx, rows, req_ids)
        finally:
            self._hits.drop_read(all_reads(ctx.reads))

    def unconsumed_steps(self) -> list[int]:
        """The ids of the steps that are saved and neither materialized nor discarded."""
        with self._state_lock:
            return list(self._step_ctxs)

    @action("take_step")
    def take_step(self, step_id: int, req_ids: Collection[str]) -> StepContext:
        """The context of a step, taken exactly once."""
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            ctx = steps.find_step(self._step_ctxs, step_id)
            place = ctx.rows.shape.place
            if not place.keys() >= set(req_ids):
                outside = [req_id for req_id in req_ids if req_id not in place]
                raise BadStepError(f"requests {outside} are outside the save snapshot of step {step_id}")
            del self._step_ctxs[step_id]
            if self._trace is not None:
                self._trace.emit("take_step", {"step": step_id}, {"steps": list(self._step_ctxs)})
            return ctx

    def _copy_out(self, ctx: StepContext) -> Rows:
        """The step's rows, copied off its page once they have landed; the step leaves the page."""
        try:
            for event in (ctx.d2h.event, ctx.snapshot_event):
                if event is not None:
                    event.synchronize()
            return {key: self._buffers.clone(view) for key, view in ctx.d2h.views.items()}
        finally:
            self._leave_page(ctx)

    def _merge(self, ctx: StepContext, rows: Rows, req_ids: Collection[str]) -> StepOutputs:
        outputs = StepOutputs(None)
        if ctx.has_hidden:
            outputs.hidden_states = self._merge_key(ctx, HIDDEN_KEY, rows.pop(HIDDEN_KEY), req_ids)
        for key, value in rows.items():
            outputs.mm_outputs[key] = self._merge_key(ctx, key, value, req_ids)
        for key, value in ctx.mm_cpu_snapshot.items():
            if key in ctx.deferred_keys:
                outputs.mm_outputs[key] = self._merge_key(ctx, key, value, req_ids)
            else:
                seq_len = None if key in self._policy.per_request_keys else ctx.rows.shape.count
                outputs.mm_outputs[key] = pass_through(value, ctx.rows.shape, req_ids, seq_len)
        if ctx.hits:
            self._report_absent(ctx, outputs, req_ids)
        return outputs

    def _merge_key(
        self, ctx: StepContext, key: str, rows: torch.Tensor, req_ids: Collection[str]
    ) -> dict[str, torch.Tensor]:
        merged = rows_by_request(rows, ctx.rows.shape, req_ids)
        for req_id, (tokens, _) in ctx.hits.items():
            if req_id in merged and key in ctx.reads[req_id]:
                merged[req_id] = append_rows(self._prefix(ctx, req_id, key), tokens, merged[req_id])
        return merged

    def _prefix(self, ctx: StepContext, req_id: str, key: str) -> torch.Tensor:
        """The buffer of a hit with its prefix rows; fetched here when the prefetch thread has not begun."""
        future, read = ctx.hit_prefetch[req_id][key], ctx.reads[req_id][key]
        if future.cancel():
            start, stop = ctx.rows.shape.span(req_id)
            return self._fetch_merged(read, stop - start)
        try:
            return future.result(self.config.staging_claim_timeout_s)
        except TimeoutError as error:
            if future.done():
                raise
            raise WaitTimeoutError(
                f"the prefetch thread did not fetch key {key!r} of request {req_id!r} within "
                f"{self.config.staging_claim_timeout_s:g} s"
            ) from error

    def _report_absent(self, ctx: StepContext, outputs: StepOutputs, req_ids: Collection[str]) -> None:
        for req_id in req_ids:
            for key, read in ctx.reads.get(req_id, {}).items():
                if read.absent is not None and key in outputs.mm_outputs:
                    outputs.absent.setdefault(key, {})[req_id] = torch.from_numpy(read.absent.copy())
