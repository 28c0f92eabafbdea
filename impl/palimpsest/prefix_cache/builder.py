"""The builder thread's side: consume a saved step, exactly once."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from time import perf_counter_ns as now_ns

import torch

from palimpsest.actions import action
from palimpsest.errors import BadStepError, WaitTimeoutError
from palimpsest.memory import with_ordinary_tensors
from palimpsest.prefix_cache import steps
from palimpsest.prefix_cache.engine import EngineSide
from palimpsest.prefix_cache.interface import HIDDEN_KEY
from palimpsest.prefix_cache.merge import RowsByRequest, StepOutputs, append_rows, pass_through
from palimpsest.prefix_cache.recording import recorded
from palimpsest.prefix_cache.records import Rows
from palimpsest.prefix_cache.state import all_reads
from palimpsest.prefix_cache.steps import StepContext
from palimpsest.sync import Deadline


class BuilderSide(EngineSide):
    """`materialize`, which any thread may call while the engine is in a later step."""

    @recorded
    @with_ordinary_tensors
    def materialize(self, step_id: int, req_ids: Collection[str]) -> StepOutputs:
        """The outputs of a saved step for `req_ids`: `[prefix rows of the hit | rows of this step]`.

        A key that the step did not produce is not delivered. The outputs are on the host, belong to the
        caller, and alias neither the cache's memory nor another request's rows. Raises
        `StepConsumedError` when the step was consumed, `BadStepError` for a request that the step does
        not have and for a step whose hits are still being handed on by its save (the step can still be
        consumed), and what a fetch raises (the step is then consumed).
        """
        self._check_open()
        ctx = self.take_step(step_id, req_ids)
        try:
            rows = self._copy_out(ctx)
            return self._merge(ctx, rows, req_ids)
        finally:
            self._hits.drop_read(all_reads(ctx.reads))

    def unconsumed_steps(self) -> list[int]:
        """The ids of the steps that are saved and neither materialized nor discarded; that of a save which has
        published its step and not returned yet among them."""
        with self._state_lock:
            return list(self._step_ctxs)

    @action("take_step")
    def take_step(self, step_id: int, req_ids: Collection[str]) -> StepContext:
        """The context of a step, taken exactly once."""
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            ctx = steps.find_step(self._step_ctxs, step_id)
            steps.require_handed_over(ctx)
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
            began = now_ns()
            rows = {key: self._buffers.clone(view) for key, view in ctx.d2h.views.items()}
            self.stats.count_delivery(ctx, now_ns() - began)
            if self._guard is not None:
                self._guard.copied_out(ctx, {**rows, **{key: ctx.mm_cpu_snapshot[key] for key in ctx.deferred_keys}})
            return rows
        finally:
            self._leave_page(ctx)

    def _merge(self, ctx: StepContext, rows: Rows, req_ids: Collection[str]) -> StepOutputs:
        outputs = StepOutputs(None)
        per_token = {**rows, **{key: ctx.mm_cpu_snapshot[key] for key in ctx.deferred_keys}}
        prefixes = self._fetch_prefixes(ctx, per_token, req_ids) if ctx.hits else {}
        shape = ctx.rows.shape
        for key, value in per_token.items():
            merged: Rows = {}
            for req_id, prefix in prefixes.get(key, {}).items():
                start, stop = shape.span(req_id)
                merged[req_id] = append_rows(prefix, ctx.hits[req_id][0], value[start:stop])
            rows_of_key = RowsByRequest(value, shape, req_ids, merged)
            if key == HIDDEN_KEY:
                outputs.hidden_states = rows_of_key
            else:
                outputs.mm_outputs[key] = rows_of_key
        for key, value in ctx.mm_cpu_snapshot.items():
            if key not in ctx.deferred_keys:
                seq_len = None if key in self._policy.per_request_keys else ctx.rows.shape.count
                outputs.mm_outputs[key] = pass_through(value, shape, req_ids, seq_len)
        if ctx.hits:
            self._report_absent(ctx, outputs, req_ids)
        return outputs

    def _fetch_prefixes(
        self, ctx: StepContext, keys: Collection[str], req_ids: Collection[str]
    ) -> dict[str, dict[str, torch.Tensor]]:
        """Per key, the buffer of each hit with its prefix rows.

        What the prefetch thread has not begun is fetched here.
        """
        wanted = [
            (key, req_id) for key in keys for req_id in ctx.hits if req_id in req_ids and key in ctx.reads[req_id]
        ]
        prefixes: dict[str, dict[str, torch.Tensor]] = {key: {} for key in keys}
        for key, req_id in wanted:
            if ctx.hit_prefetch[req_id][key].cancel():
                start, stop = ctx.rows.shape.span(req_id)
                prefixes[key][req_id] = self._fetch_merged(ctx.reads[req_id][key], stop - start)
            else:
                prefixes[key][req_id] = self._await_prefix(ctx, req_id, key)
        return prefixes

    def _await_prefix(self, ctx: StepContext, req_id: str, key: str) -> torch.Tensor:
        future = ctx.hit_prefetch[req_id][key]
        deadline = Deadline(self._sync, self.config.staging_claim_timeout_s)
        waits = partial(self._who_fetches, ctx, req_id, key)
        try:
            return self._controller.slow.result(future, deadline, waits)
        except TimeoutError as error:
            if future.done():
                raise
            raise WaitTimeoutError(
                f"the prefetch thread did not fetch key {key!r} of request {req_id!r} within "
                f"{deadline.seconds:g} s: {waits()}"
            ) from error

    def _who_fetches(self, ctx: StepContext, req_id: str, key: str) -> str:
        read = ctx.reads[req_id][key]
        tasks = ", ".join(self._controller.told(read.join_tids))
        has = f"it waits for {tasks}" if tasks else "the prefetch thread copies it"
        return f"step {ctx.step_id} waits for read {read.rid} (key {key!r} of request {req_id!r}); {has}"

    def _report_absent(self, ctx: StepContext, outputs: StepOutputs, req_ids: Collection[str]) -> None:
        for req_id in req_ids:
            for key, read in ctx.reads.get(req_id, {}).items():
                if read.absent is not None and key in outputs.mm_outputs:
                    outputs.absent.setdefault(key, {})[req_id] = torch.from_numpy(read.absent.copy())
