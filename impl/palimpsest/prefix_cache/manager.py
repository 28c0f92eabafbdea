"""The prefix cache as a runner sees it: begin a step, save its outputs, consume them.

One engine thread calls `new_step_starts` and `save_outputs`; any thread may consume a saved step with
`materialize` or `discard_step`, also while the engine is in a later step. The manager joins what the
other modules of this package keep: slots, reads, requests, tasks, pages.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from typing import Any

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.errors import (
    BadStepError,
    InvariantError,
    PrefixCacheError,
    ShutdownError,
    StepConsumedError,
    WaitTimeoutError,
    WriteFailedError,
)
from palimpsest.prefix_cache import split, steps
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.controller import PrefixCacheController
from palimpsest.prefix_cache.copies import Copies, LandedEvent, has_accelerator
from palimpsest.prefix_cache.hits import HitReader
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout, ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.merge import StepOutputs, append_rows, own_rows, pass_through, rows_by_request
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.requests import RequestTasks
from palimpsest.prefix_cache.sizing import plan_memory, require_memory
from palimpsest.prefix_cache.slots import SlotTable
from palimpsest.prefix_cache.split import SplitOutputs
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.steps import BatchShape, BegunStep, GroupView, StepContext, StepCopies, StepRows
from palimpsest.prefix_cache.tasks import BudgetTicket, Rows, WriteRecord, WriteTask
from palimpsest.sync import STANDARD, Deadline, Sync
from palimpsest.trace import Sink

logger = logging.getLogger(__name__)

PREFETCH_NAME = "omni-prefix-cache-prefetch"  # upstream's name, which its tests look for

_is_step_token_tensor = split.is_step_token_tensor


def _snapshot_leftover_mm_cpu(
    mm: Mapping[str, Any], keys_on_device: Collection[str], n: int, copies: Copies | None = None
) -> tuple[dict[str, Any], LandedEvent | None]:
    """Host copies of the values of `mm` that are not among `keys_on_device`, and when they have landed.

    Shapes are kept, of tensors inside lists, tuples and dicts too. On an accelerator the copies are
    pinned and queued on a stream of their own; the event is None when all have landed.
    """
    values = {key: value for key, value in mm.items() if key not in keys_on_device}
    snapshot, event = (copies or Copies(PrefixCacheConfig(1, 1).staging_claim_timeout_s)).snapshot(values)
    return snapshot, event


class PrefixCacheManager:
    """A cache of the hidden states and multimodal rows of reused prompt prefixes.

    `config` sizes it, `view` tells the batch's requests and slots. `eager` writes on the engine thread;
    otherwise a committer thread does; None (the default) means eager exactly when there is no accelerator.
    `sync` gives the primitives, `trace` takes one event per action of the protocol. Call
    `register_policy` before the first step and `shutdown` at the end.

    Every method raises `ShutdownError` after `shutdown`. After a write failed, every method but
    `discard_step` and `shutdown` raises `WriteFailedError`.
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
        self.config, self.stats = config, Stats()
        self._view, self._sync, self._trace = view, sync, trace
        self._pinned = accelerated = has_accelerator()
        plan = plan_memory(config, config.layouts, config.layouts, pinned=self._pinned)
        require_memory(plan, f"{config.num_slots} slots and {config.staging_depth} staging pages")
        self._state_lock = sync.lock()
        self._pool = PrefixBlockPool(config)
        self._controller = PrefixCacheController(
            self._pool, config, not accelerated if eager is None else eager,
            pinned=accelerated, sync=sync, trace=trace, stats=self.stats,
        )  # fmt: skip
        self._copies = Copies(config.staging_claim_timeout_s, sync)
        self._prefetch_pool = sync.executor(PREFETCH_NAME)
        #: guarded by the state lock, as all of the following
        self._slot_status = SlotTable(config.num_slots)
        self._hits = HitReader(self._slot_status, self._pool, self._controller, self._state_lock, trace, self.stats)
        self._request_tasks = RequestTasks(self._controller, sync)
        self._policy = ModelCachePolicy()
        self._begun: BegunStep | None = None
        self._step_ctxs: dict[int, StepContext] = {}
        self._failure: WriteTask | None = None
        self._closed = False
        #: the engine thread's own
        self._join_next_step_tids: list[int] = []
        self._shape: BatchShape | None = None
        self._step_ids = itertools.count(1)
        logger.info(
            "prefix cache: %d blocks of %d slots, %d %sstaging pages of %d tokens, %s; declared keys %s take %s",
            config.num_blocks, config.block_size, config.staging_depth, "pinned " if self._pinned else "",
            config.staging_capacity_tokens, "eager" if self._controller.eager else "threaded",
            {key: str(layout) for key, layout in config.layouts.items()}, plan,
        )  # fmt: skip
        if trace is not None:
            trace.begin({"num_blocks": config.num_blocks, "block_size": config.block_size})

    @property
    def _pending_reads(self) -> Collection[PendingRead]:
        return self._hits.pending

    def register_policy(self, policy: ModelCachePolicy) -> None:
        """Use `policy` from the next step on."""
        self._policy = policy

    # ------------------------------------------------------------------ begin

    def new_step_starts(self, scheduler_output: Any) -> None:
        """Begin a step: end the requests it reports as finished or preempted, and plan its hits.

        Reads `scheduled_new_reqs` (`req_id`, `num_computed_tokens`, `block_ids`), `finished_req_ids`,
        `num_scheduled_tokens` and, where there is one, `preempted_req_ids`. Raises `BadStepError` for new
        requests that do not fit; ended requests are flushed all the same.
        """
        self._check_open()
        schedule = steps.read_schedule(scheduler_output, self.config, self._request_tasks.live)
        escalated = self.begin_step(schedule)
        self._controller.escalate(escalated)
        if schedule.error is not None:
            raise schedule.error
        self._prefetch(self._begun)

    @action("begin_step")
    def begin_step(self, schedule: steps.Schedule) -> list[int]:
        """Drain, end generations, register hits and plan their reads; gives the tasks to escalate."""
        with self._state_lock:
            self._drop_begun()
            self._commit_drained_writes()
            escalated = self._request_tasks.end(schedule.ended)
            if schedule.error is None:
                self._begun = self._begin(schedule)
            if self._trace is not None:
                self._trace.emit("begin_step", {"ended": schedule.ended}, {"sealed": escalated})
            return escalated

    def _begin(self, schedule: steps.Schedule) -> BegunStep:
        size = self.config.block_size
        slots = {req_id: steps.hit_slots(blocks, size) for req_id, (_, blocks) in schedule.hits.items()}
        begun = BegunStep(schedule.num_scheduled, schedule.hits, slots)
        try:
            for req_id in schedule.hits:
                self._plan_hit(begun, req_id)
        except BaseException:
            self._hits.drop_all(_all_reads(begun.reads))
            raise
        return begun

    def _plan_hit(self, begun: BegunStep, req_id: str) -> None:
        """Plan the reads of a hit that are not planned yet."""
        reads = begun.reads.setdefault(req_id, {})
        for key in self._policy.get_hit_keys(self._slot_status.keys):
            if key not in reads:
                reads[key] = self._hits.plan(begun.hit_slots[req_id], key, req_id)

    def _drop_begun(self) -> None:
        """Let go of a begun step that was never published: an idle step, or one that is tried again."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._hits.drop_all(_all_reads(begun.reads))

    def _prefetch(self, begun: BegunStep | None) -> None:
        """Fetch planned reads on the prefetch thread, each into the buffer that its request will get."""
        for req_id, reads in begun.reads.items() if begun is not None else ():
            futures = begun.prefetches.setdefault(req_id, {})
            for key, read in reads.items():
                if key not in futures:
                    futures[key] = self._prefetch_pool.submit(
                        self._fetch_merged, read, begun.num_scheduled.get(req_id, 0)
                    )

    def _fetch_merged(self, read: PendingRead, new_rows: int) -> torch.Tensor:
        """A buffer for the whole prompt of a hit, its prefix rows filled in."""
        layout = self._pool.layout(read.key)
        merged = torch.empty((read.slots.size + new_rows, *layout.row_shape), dtype=layout.dtype)
        self._hits.fetch(read, merged[: read.slots.size])
        return merged

    # ------------------------------------------------------------------ save

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
            self.commit()
        if self._begun is None:
            raise BadStepError("save_outputs without a step: call new_step_starts first")
        rows = steps.read_rows(
            self._view, self._begun.num_scheduled, num_tokens_unpadded, num_tokens_padded, self.config,
            self._shape,
        )  # fmt: skip
        self._shape = rows.shape
        outputs = self._split(hidden_states, multimodal_outputs or {}, rows, num_tokens_padded)
        storage = self._allocate_keys(outputs)
        self._controller.join(self._join_next_step_tids)
        step_id = next(self._step_ids)
        ticket = self._reserve(outputs.deferred)
        try:
            page = self._controller.staging.claim(StagingBufferHolder.for_step(step_id))
        except BaseException:
            self._unreserve(ticket)
            raise
        try:
            ctx = self._freeze(step_id, page, rows, outputs, storage)
            tasks, closed = self.publish(ctx, outputs, storage)
        except BaseException:
            self._controller.staging.release_page(page, [StagingBufferHolder.for_step(step_id)])
            self._unreserve(ticket)
            raise
        self._hand_over(ctx, tasks, closed)
        return step_id

    def _split(
        self, hidden: torch.Tensor | None, mm: Mapping[str, Any], rows: StepRows, padded: int
    ) -> SplitOutputs:
        return self._split_step_outputs(
            hidden, mm, rows.shape.count, padded,
            slots_cpu=rows.slots, req_order=rows.shape.req_order, bounds=rows.shape.bounds,
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
        query_start: Mapping[str, int] | None = None,
        bounds: list[int] | None = None,
    ) -> SplitOutputs:
        """A step's outputs by what becomes of them; each request's rows by `bounds`, or by `num_sched`."""
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
        immediate = self._new_layouts(outputs.immediate)
        new = {**immediate, **self._new_layouts(outputs.deferred.tensors if outputs.deferred is not None else {})}
        if not new:
            return {}
        plan = plan_memory(self.config, new, immediate, pinned=self._pinned)
        require_memory(plan, f"new keys {sorted(new)}")
        logger.info("prefix cache: keys %s take %s", sorted(new), plan)
        return {key: self._pool.allocate(layout) for key, layout in new.items()}

    def _new_layouts(self, rows: Rows) -> dict[str, KeyLayout]:
        return {key: KeyLayout.of(value) for key, value in rows.items() if not self._pool.has_key(key)}

    def _reserve(self, deferred: WriteRecord | None) -> BudgetTicket | None:
        """Charge the clones of a step's deferred rows, flushing the oldest ones while they do not fit."""
        if deferred is None:
            return None
        ticket = BudgetTicket(sum(rows.nbytes for rows in deferred.tensors.values()))
        while not self._controller.reserve(ticket.nbytes):
            self._flush_oldest(ticket.nbytes)
        deferred.budget = ticket
        return ticket

    def _unreserve(self, ticket: BudgetTicket | None) -> None:
        if ticket is not None and not ticket.holders:
            self._controller.unreserve(ticket.nbytes)

    def _flush_oldest(self, needed: int) -> None:
        tids = self.seal_oldest()
        if not tids:
            tids = [task.tid for task in self._controller.unfinished()]
            if not tids:
                raise PrefixCacheError(f"{needed} bytes do not fit the budget, and no task holds a clone")
        self._controller.escalate(tids)
        self._controller.join(tids)
        self.stats.flushes += 1
        self.commit()

    @action("seal_oldest")
    def seal_oldest(self) -> list[int]:
        """Close the open deferred tasks that hold the oldest rows; gives them."""
        with self._state_lock:
            tids = self._request_tasks.seal_oldest()
            if self._trace is not None:
                self._trace.emit("seal_oldest", {}, {"sealed": tids})
            return tids

    @action("commit")
    def commit(self) -> None:
        """Drain the records of finished writes."""
        with self._state_lock:
            self._commit_drained_writes()
            if self._trace is not None:
                self._trace.emit("commit", {}, {})

    @action("freeze")
    def _freeze(
        self, step_id: int, page: int, rows: StepRows, outputs: SplitOutputs, storage: Mapping[str, torch.Tensor]
    ) -> StepContext:
        """Queue the copies of the live buffers, so that what was handed in is what lands."""
        for key in outputs.immediate:
            if key in storage:
                self._controller.staging.add_key(key, KeyLayout.of(storage[key]))
        views = self._controller.staging.views(page, outputs.immediate, rows.shape.count)
        event = self._copies.freeze_into(outputs.immediate, views)
        snapshot, snapshot_event = _snapshot_leftover_mm_cpu(outputs.leftover, (), rows.shape.count, self._copies)
        deferred = outputs.deferred
        if deferred is not None:
            deferred.tensors = {key: self._copies.clone(value) for key, value in deferred.tensors.items()}
            deferred.ready = self._copies.mark(next(iter(deferred.tensors.values())))
        if self._trace is not None:
            self._trace.emit("freeze", {"step": step_id, "page": page, "slots": rows.slots.numpy().copy()}, {})
            if event is None:
                self._trace.emit("copy_lands", {"step": step_id, "page": page}, {})
        begun = self._begun
        assert begun is not None
        return StepContext(
            step_id, rows, begun.hits, begun.reads, begun.prefetches, StepCopies(page, views, event), snapshot,
            snapshot_event, frozenset(deferred.tensors if deferred is not None else ()), HIDDEN_KEY in views,
        )  # fmt: skip

    @action("publish")
    def publish(
        self, ctx: StepContext, outputs: SplitOutputs, storage: Mapping[str, torch.Tensor]
    ) -> tuple[list[WriteTask], list[int]]:
        """Make the step part of the cache: drain, preserve, claim its slots, register its tasks, plan the
        hits on its own rows, store its context. Gives the tasks to dispatch and those to escalate."""
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            begun, slots = self._begun, ctx.rows.slots.numpy()
            assert begun is not None
            replanned = self._drop_overtaken(begun, slots)
            self._preserve(slots)
            self._install_keys(storage)
            tasks, closed = self._claim(ctx, outputs)
            for req_id in begun.hits:
                self._plan_hit(begun, req_id)
            self._step_ctxs[ctx.step_id], self._begun = ctx, None
            self.stats.count_step(ctx, replanned)
            if self._trace is not None:
                args = {"step": ctx.step_id, "page": ctx.d2h.staging_slot, "tids": [task.tid for task in tasks]}
                self._trace.emit("publish", args, self._slot_status.snapshot(slots))
            return tasks, closed

    def _drop_overtaken(self, begun: BegunStep, slots: np.ndarray) -> int:
        """Drop the early reads on slots that this step writes itself; they are planned again after the claim."""
        if not begun.hits:
            return 0
        requests = list(begun.hits)
        overtaken = self._slot_status.overlaps([begun.hit_slots[req_id] for req_id in requests], slots)
        dropped = [req_id for req_id, hit in zip(requests, overtaken, strict=True) if hit]
        for req_id in dropped:
            self._hits.drop_all(begun.reads.pop(req_id, {}).values())
            for future in begun.prefetches.pop(req_id, {}).values():
                future.cancel()
        return len(dropped)

    def _preserve(self, slots: np.ndarray) -> None:
        for key in self._slot_status.keys if self._hits.pending else ():
            self._hits.preserve(key, slots)

    def _install_keys(self, storage: Mapping[str, torch.Tensor]) -> None:
        for key, rows in storage.items():
            self._pool.install_key(key, rows)
            self._slot_status.add_key(key)

    def _claim(self, ctx: StepContext, outputs: SplitOutputs) -> tuple[list[WriteTask], list[int]]:
        rows, requests = ctx.rows, self._request_tasks
        tenants = requests.tenants(rows)
        writers: dict[str, np.ndarray] = {}
        opened: list[WriteTask] = []
        closed: list[int] = []
        tasks = self._immediate_tasks(ctx, outputs)
        if tasks:
            writers.update(dict.fromkeys(outputs.immediate, rows.shape.per_row([task.tid for task in tasks])))
        if outputs.deferred is not None:
            batch, opened, closed = requests.append(outputs.deferred, rows)
            writers.update(dict.fromkeys(outputs.deferred.tensors, batch.row_tids))
            assert outputs.deferred.budget is not None
            self._controller.pin_all(outputs.deferred.budget, batch.tids)
        for tid, key, slots in self._slot_status.claim(rows.slots.numpy(), tenants, writers):
            self._controller.take_over(tid, key, slots)
        self._controller.submit_all(tasks, queued=True)
        self._controller.submit_all(opened, queued=False)
        self._join_next_step_tids = [task.tid for task in tasks]
        return tasks, closed

    def _immediate_tasks(self, ctx: StepContext, outputs: SplitOutputs) -> list[WriteTask]:
        if not outputs.immediate:
            return []
        page = ctx.d2h.staging_slot
        record = WriteRecord(ctx.rows.slots, {}, ctx.d2h.views)
        tasks = self._request_tasks.immediate(record, ctx.rows, ctx.step_id, page, ctx.d2h.event)
        self._controller.staging.bind(page, [StagingBufferHolder("task", task.tid) for task in tasks])
        return tasks

    def _hand_over(self, ctx: StepContext, tasks: list[WriteTask], closed: list[int]) -> None:
        """Give a published step's tasks to the committer; on an error the step is gone (fail-stop)."""
        try:
            if tasks:
                self._controller.dispatch(tasks)
            if closed:
                self._controller.escalate(closed)
        except BaseException:
            self.discard_step(ctx.step_id)
            raise
        self._prefetch_step(ctx)

    def _prefetch_step(self, ctx: StepContext) -> None:
        if ctx.hits:
            counts = dict(zip(ctx.rows.shape.req_order, ctx.rows.shape.counts, strict=True))
            self._prefetch(BegunStep(counts, ctx.hits, {}, ctx.reads, ctx.hit_prefetch))

    # ------------------------------------------------------------------ consume

    def materialize(self, step_id: int, req_ids: Collection[str]) -> StepOutputs:
        """The outputs of a saved step for `req_ids`: `[prefix rows of the hit | rows of this step]`.

        A key that the step did not produce is not delivered. The outputs are on the host, belong to the
        caller, and alias neither the cache's memory nor another request's rows. Raises
        `StepConsumedError` when the step was consumed, `BadStepError` for a request that the step does
        not have (the step can still be consumed), and what a fetch raises (the step is then consumed).
        """
        ctx = self.take_step(step_id, req_ids)
        try:
            rows = self._copy_out(ctx)
        except BaseException:
            self._hits.drop_read(_all_reads(ctx.reads))
            raise
        finally:
            self._leave_page(ctx)
        try:
            return self._merge(ctx, rows, req_ids)
        finally:
            self._hits.drop_read(_all_reads(ctx.reads))

    @action("take_step")
    def take_step(self, step_id: int, req_ids: Collection[str]) -> StepContext:
        """The context of a step, taken exactly once; reads that `req_ids` do not need are dropped."""
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            ctx = self._find_step(step_id)
            if not ctx.rows.shape.place.keys() >= set(req_ids):
                outside = [req_id for req_id in req_ids if req_id not in ctx.rows.shape.place]
                raise BadStepError(f"requests {outside} are outside the save snapshot of step {step_id}")
            del self._step_ctxs[step_id]
            if self._trace is not None:
                self._trace.emit("take_step", {"step": step_id}, {"steps": list(self._step_ctxs)})
            return ctx

    def discard_step(self, step_id: int) -> None:
        """Consume a saved step without its outputs. Raises `StepConsumedError` when it was consumed."""
        self._leave_page(self._discard(step_id))

    @action("discard_step")
    def _discard(self, step_id: int) -> StepContext:
        with self._state_lock:
            self._check_open()
            ctx = self._find_step(step_id)
            del self._step_ctxs[step_id]
            self._hits.drop_all(_all_reads(ctx.reads))
            if self._trace is not None:
                self._trace.emit("discard_step", {"step": step_id}, {"steps": list(self._step_ctxs)})
            return ctx

    def unconsumed_steps(self) -> list[int]:
        """The ids of the steps that are saved and neither materialized nor discarded."""
        with self._state_lock:
            return list(self._step_ctxs)

    def _find_step(self, step_id: int) -> StepContext:
        ctx = self._step_ctxs.get(step_id)
        if ctx is None:
            raise StepConsumedError(
                f"step {step_id} is unknown or was consumed; unconsumed are {sorted(self._step_ctxs)}"
            )
        return ctx

    def _leave_page(self, ctx: StepContext) -> None:
        self._controller.staging.release_page(ctx.d2h.staging_slot, [StagingBufferHolder.for_step(ctx.step_id)])

    def _copy_out(self, ctx: StepContext) -> Rows:
        """The step's rows, copied off its page once they have landed."""
        if ctx.d2h.event is not None:
            ctx.d2h.event.synchronize()
        if ctx.snapshot_event is not None:
            ctx.snapshot_event.synchronize()
        return own_rows(ctx.d2h.views)

    def _merge(self, ctx: StepContext, rows: Rows, req_ids: Collection[str]) -> StepOutputs:
        outputs = StepOutputs(self._merge_key(ctx, HIDDEN_KEY, rows[HIDDEN_KEY], req_ids) if ctx.has_hidden else None)
        for key, value in rows.items():
            if key != HIDDEN_KEY:
                outputs.mm_outputs[key] = self._merge_key(ctx, key, value, req_ids)
        for key, value in ctx.mm_cpu_snapshot.items():
            if key in ctx.deferred_keys:
                outputs.mm_outputs[key] = self._merge_key(ctx, key, value, req_ids)
            else:
                seq_len = None if key in self._policy.per_request_keys else ctx.rows.shape.count
                outputs.mm_outputs[key] = pass_through(value, ctx.rows.shape, req_ids, seq_len)
        self._report_absent(ctx, outputs, req_ids)
        return outputs

    def _merge_key(
        self, ctx: StepContext, key: str, rows: torch.Tensor, req_ids: Collection[str]
    ) -> dict[str, torch.Tensor]:
        merged = rows_by_request(rows, ctx.rows.shape, req_ids)
        for req_id in ctx.hits:
            if req_id in merged:
                prefix = self._prefix(ctx, req_id, key)
                merged[req_id] = append_rows(prefix, ctx.hits[req_id][0], merged[req_id])
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
        for req_id in req_ids if ctx.hits else ():
            for key, read in ctx.reads.get(req_id, {}).items():
                if read.absent is not None and key in outputs.mm_outputs:
                    outputs.absent.setdefault(key, {})[req_id] = torch.from_numpy(read.absent.copy())

    # ------------------------------------------------------------------ state under the lock

    def _commit_drained_writes(self) -> None:
        """Make finished writes visible; the caller holds the state lock. Raises when a write has failed."""
        self._drain()
        if self._failure is not None:
            task = self._failure
            slots = [int(slot) for chunk in task.chunks[:4] for slot in chunk.slots_cpu[:4]]
            raise WriteFailedError(
                f"a write failed: {task}, slots {slots} and on; the cache serves nothing from here on"
            ) from self._controller.cause_of(task.tid)

    def _drain(self) -> None:
        completed, failed = self._controller.take_records()
        for write in {id(task.landed): task.landed for task in completed}.values():
            for key, slots, _, tids in write.writes if write is not None else ():
                self._slot_status.commit(key, slots.numpy(), tids)
        if failed and self._failure is None:
            self._failure = failed[0]

    def _check_open(self) -> None:
        if self._closed:
            raise ShutdownError("the prefix cache was shut down")

    def _slot_ref(self, slots: torch.Tensor, key: str, req_id: str) -> PendingRead:
        return self._hits.plan(slots.numpy(), key, req_id)

    def _fetch_source(self, read: PendingRead) -> torch.Tensor:
        return self._hits.fetch(read)

    def _ensure_not_reassigned(
        self, slots: torch.Tensor, key: str, *, req_id: str, planned_version: torch.Tensor
    ) -> None:
        self._hits.ensure_current(slots.numpy(), key, req_id, planned_version.numpy())

    # ------------------------------------------------------------------ epochs and the end

    @action("reset")
    def reset(self) -> None:
        """Start a new epoch: nothing saved so far can be read, and writes in flight never become visible.

        For a weight update or a sleep. Live requests go on as new generations; reads planned before raise.
        """
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            self._slot_status.reset()
            self._controller.abandon_all()
            closed = self._request_tasks.renew()
            if self._trace is not None:
                self._trace.emit("reset", {}, {"sealed": closed})
        self._controller.escalate(closed)

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
        """Refuse later calls; False when that was done before."""
        with self._state_lock:
            was_closed, self._closed = self._closed, True
            if self._trace is not None and not was_closed:
                self._trace.emit("shutdown_begin", {}, {})
            return not was_closed

    @action("shutdown_end")
    def shutdown_end(self) -> None:
        """Release what steps and reads still hold."""
        with self._state_lock:
            self._drain()
            self._drop_begun()
            contexts = list(self._step_ctxs.values())
            self._step_ctxs.clear()
            self._hits.drop_all(list(self._hits.pending))
            self._request_tasks.end(list(self._request_tasks.live))
            if self._trace is not None:
                self._trace.emit("shutdown_end", {}, {"steps": [ctx.step_id for ctx in contexts]})
        for ctx in contexts:
            self._leave_page(ctx)

    def _stop_prefetch(self) -> list[str]:
        last: Future[None] = self._prefetch_pool.submit(lambda: None)
        deadline = Deadline(self._sync, self.config.staging_claim_timeout_s)
        ended = bool(wait_for_futures([last], deadline.left()).done)
        self._prefetch_pool.shutdown(wait=ended, cancel_futures=True)
        return [] if ended else [PREFETCH_NAME]

    def check_invariants(self) -> None:
        """Raise `InvariantError` when structures disagree, or something is held although all is quiet.

        To be called while no other thread is inside the cache.
        """
        with self._state_lock:
            wrong = self._slot_status.check() + self._hits.pending.check() + self._controller.check()
            reads = {read for ctx in self._step_ctxs.values() for read in _all_reads(ctx.reads)}
            reads |= set(_all_reads(self._begun.reads)) if self._begun is not None else set()
            wrong += [f"read {read.rid} is pending without a step" for read in self._hits.pending if read not in reads]
            wrong += self._held_pages()
        if wrong:
            raise InvariantError("; ".join(wrong))

    def _held_pages(self) -> list[str]:
        known = {StagingBufferHolder.for_step(step_id) for step_id in self._step_ctxs}
        return [
            f"{held}, which was consumed"
            for held, holder in self._controller.staging.holds()
            if holder.kind == "step" and holder not in known
        ]


def _all_reads(reads: steps.Reads) -> Iterable[PendingRead]:
    return [read for of_request in reads.values() for read in of_request.values()]


OmniPrefixCacheManager = PrefixCacheManager
