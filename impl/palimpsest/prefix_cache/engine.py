"""The engine thread's side: begin a step, save its outputs, publish it, hand its writes over."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.errors import BadStepError, PrefixCacheError, ShutdownError, StepConsumedError, WaitTimeoutError
from palimpsest.memory import with_ordinary_tensors
from palimpsest.prefix_cache import events, split, steps
from palimpsest.prefix_cache.copies import Copies, LandedEvent
from palimpsest.prefix_cache.events import Published
from palimpsest.prefix_cache.hits import Aside
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout, PrefixCacheConfig
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.sizing import plan_memory, require_memory
from palimpsest.prefix_cache.slots import NO_SLOTS
from palimpsest.prefix_cache.split import SplitOutputs
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.prefix_cache.state import CacheState, all_reads, logger
from palimpsest.prefix_cache.steps import BegunStep, StepContext, StepCopies, StepRows
from palimpsest.prefix_cache.tasks import BudgetTicket, Rows, WriteRecord, WriteTask

Storage = Mapping[str, torch.Tensor]


def snapshot_leftover(
    mm: Mapping[str, Any],
    keys_on_device: Collection[str],
    n: int,  # noqa: ARG001  upstream's signature: shapes are kept whatever the token count
    copies: Copies | None = None,
) -> tuple[dict[str, Any], LandedEvent | None]:
    """Host copies of the values of `mm` that are not among `keys_on_device`, and when they have landed.

    Shapes are kept, of tensors inside lists, tuples and dicts too, whatever the token count `n`. On an
    accelerator the copies are pinned and queued on a stream of their own; the event is None when all have
    landed.
    """
    values = {key: value for key, value in mm.items() if key not in keys_on_device}
    snapshot, event = (copies or Copies(PrefixCacheConfig(1, 1).staging_claim_timeout_s)).snapshot(values)
    return snapshot, event


class EngineSide(CacheState):
    """`new_step_starts` and `save_outputs`, and the actions that they are made of."""

    # ------------------------------------------------------------------ begin

    @with_ordinary_tensors
    def new_step_starts(self, scheduler_output: Any) -> None:
        """Begin a step: end the requests it reports as finished or preempted, and plan its hits.

        Reads `scheduled_new_reqs` (`req_id`, `num_computed_tokens`, `block_ids`), `finished_req_ids`,
        `num_scheduled_tokens` and, where there is one, `preempted_req_ids`. Raises `BadStepError` for new
        requests that do not fit; ended requests are flushed all the same.
        """
        self._check_open()
        schedule = steps.read_schedule(scheduler_output, self.config, self._request_tasks.live)
        sealed = self.begin_step(schedule)
        if sealed:
            self._controller.escalate(sealed)
        if schedule.error is not None:
            raise schedule.error
        self._prefetch(self._begun)

    @action("begin_step")
    def begin_step(self, schedule: steps.Schedule) -> list[int]:
        """Drain, end generations, register hits and plan their reads; gives the tasks to escalate."""
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            dropped = self._drop_begun()
            with self._controller.lock:
                sealed = self._request_tasks.end(schedule.ended)
                retired = NO_SLOTS
                if schedule.allocated:
                    retired = self._slot_status.retire_blocks(np.array(schedule.allocated, dtype=np.int64))
                    self._retire(retired)
                begun = self._begun = self._begin(schedule) if schedule.error is None else None
                if self._trace is not None:
                    hits = events.hits(schedule.hits)
                    args = {"ended": schedule.ended, "hits": hits, "allocated": schedule.allocated}
                    reads = events.planned(all_reads(begun.reads)) if begun is not None else []
                    post = {"dropped": dropped, "sealed": sealed, "reads": reads}
                    self._trace.emit("begin_step", args, {**post, "retired": self._slot_status.snapshot(retired)})
            return sealed

    def _begin(self, schedule: steps.Schedule) -> BegunStep:
        size = self.config.block_size
        slots = {req_id: steps.hit_slots(blocks, size) for req_id, (_, blocks) in schedule.hits.items()}
        begun = BegunStep(schedule.num_scheduled, schedule.hits, slots)
        try:
            for req_id in schedule.hits:
                self._plan_hit(begun, req_id)
        except BaseException:
            self._hits.drop_all(all_reads(begun.reads))
            raise
        return begun

    def _plan_hit(self, begun: BegunStep, req_id: str) -> list[PendingRead]:
        """Plan the reads of a hit that are not planned yet; gives those."""
        reads = begun.reads.setdefault(req_id, {})
        keys = [key for key in self._policy.get_hit_keys(self._slot_status.keys) if key not in reads]
        for key in keys:
            reads[key] = self._hits.plan(begun.hit_slots[req_id], key, req_id)
        return [reads[key] for key in keys]

    def _prefetch(self, begun: BegunStep | None) -> None:
        """Fetch planned reads on the prefetch thread, each into the buffer that its request will get."""
        if begun is None:
            return
        for req_id, reads in begun.reads.items():
            futures = begun.prefetches.setdefault(req_id, {})
            new_rows = begun.num_scheduled.get(req_id, 0)
            for key, read in reads.items():
                if key not in futures:
                    futures[key] = self._prefetch_pool.submit(self._fetch_merged, read, new_rows)

    # ------------------------------------------------------------------ save

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
        try:
            ctx = self.freeze(step_id, page, rows, outputs, storage)
            return ctx, *self.publish(ctx, outputs, storage)
        except BaseException:
            # A copy that is under way still uses the page; one that does not land keeps it.
            with suppress(WaitTimeoutError):
                self._copies.settle()
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
        tids = self.seal_oldest() or [task.tid for task in self._controller.unfinished()]
        if not tids:
            return False
        self._controller.escalate(tids)
        self._controller.join(tids)
        self.stats.flushes += 1
        self._commit()
        return True

    @action("seal_oldest")
    def seal_oldest(self) -> list[int]:
        """Close the open deferred tasks that hold the oldest rows; gives them."""
        with self._state_lock:
            self._check_open()
            sealed = self._request_tasks.seal_oldest()
            if self._trace is not None:
                self._trace.emit("seal_oldest", {}, {"sealed": sealed})
            return sealed

    # ------------------------------------------------------------------ freeze and publish

    @action("freeze")
    def freeze(self, step_id: int, page: int, rows: StepRows, outputs: SplitOutputs, storage: Storage) -> StepContext:
        """Queue the copies of the live buffers, so that what was handed in is what lands."""
        for key in outputs.immediate:
            if key in storage:
                self._controller.staging.add_key(key, KeyLayout.of(storage[key]))
        views = self._controller.staging.views(page, outputs.immediate, rows.shape.count)
        event = self._copies.freeze_into(outputs.immediate, views)
        snapshot, snapshot_event = snapshot_leftover(outputs.leftover, (), rows.shape.count, self._copies)
        deferred = outputs.deferred
        if deferred is not None:
            deferred.tensors = {key: self._copies.clone(value) for key, value in deferred.tensors.items()}
            deferred.ready = self._copies.mark(next(iter(deferred.tensors.values())))
        if self._trace is not None:
            args = {"step": step_id, "page": page, "keys": list(views)}
            frozen = {**outputs.immediate, **(deferred.tensors if deferred is not None else {})}
            self._trace.emit("freeze", args, {"tags": events.tags(self._trace, frozen)})
            if event is None:
                self.copy_lands(args, views)
            else:
                event.on_landed = partial(self.copy_lands, args, views)
        begun = self._begun
        if begun is None:
            self._check_open()  # shutdown took it
        assert begun is not None
        return StepContext(
            step_id, rows, begun.hits, begun.reads, begun.prefetches, StepCopies(page, views, event), snapshot,
            snapshot_event, frozenset(deferred.tensors if deferred is not None else ()), HIDDEN_KEY in views,
        )  # fmt: skip

    @action("copy_lands")
    def copy_lands(self, args: dict[str, Any], views: Rows) -> None:
        """Report that a step's rows are on its page; the device did it."""
        if self._trace is not None:
            self._trace.emit("copy_lands", args, {"tags": events.tags(self._trace, views)})

    @action("publish")
    def publish(self, ctx: StepContext, outputs: SplitOutputs, storage: Storage) -> tuple[list[WriteTask], list[int]]:
        """Make the step part of the cache: preserve, claim its slots, register its tasks, plan the hits on its
        own rows, store its context. Gives the tasks to dispatch and those to escalate.

        Finished writes are drained first. Claiming and registering also hold the task lock.
        """
        with self._state_lock:
            self._check_open()
            self._commit_drained_writes()
            begun, slots = self._begun, ctx.rows.slots.numpy()
            assert begun is not None
            overtaken = self._overtaken(begun, slots)
            # What may fail comes first: until here the step can be saved again.
            copies = self._copy_aside(slots, overtaken, begun)
            self._install_keys(storage)
            published = Published(preserved=self._hits.preserve(copies))
            published.dropped = self._drop_overtaken(begun, overtaken)
            with self._controller.lock:
                self._claim(ctx, outputs, published)
                published.reads = [read for req_id in begun.hits for read in self._plan_hit(begun, req_id)]
                self._step_ctxs[ctx.step_id], self._begun = ctx, None
                self.stats.count_step(ctx, len(overtaken))
                if self._trace is not None:
                    holders = self._controller.staging.holders_of(ctx.d2h.staging_slot)
                    event = events.published(ctx, outputs, published, self._slot_status, holders)
                    self._trace.emit("publish", *event)
            return published.tasks, published.closed

    def _overtaken(self, begun: BegunStep, slots: np.ndarray) -> list[str]:
        """The hits on slots that this step writes itself: they are planned again after the claim."""
        if not begun.hits:
            return []
        requests = list(begun.hits)
        found = self._slot_status.overlaps([begun.hit_slots[req_id] for req_id in requests], slots)
        return [req_id for req_id, hit in zip(requests, found, strict=True) if hit]

    def _copy_aside(self, slots: np.ndarray, overtaken: list[str], begun: BegunStep) -> list[Aside]:
        if not len(self._hits.pending):
            return []
        spared = {read.rid for req_id in overtaken for read in begun.reads.get(req_id, {}).values()}
        return [copy for key in self._slot_status.keys for copy in self._hits.copy_aside(key, slots, spared)]

    def _drop_overtaken(self, begun: BegunStep, overtaken: list[str]) -> list[int]:
        dropped: list[int] = []
        for req_id in overtaken:
            dropped += self._hits.drop_all(begun.reads.pop(req_id, {}).values())
            for future in begun.prefetches.pop(req_id, {}).values():
                future.cancel()
        return dropped

    def _install_keys(self, storage: Storage) -> None:
        for key, rows in storage.items():
            self._pool.install_key(key, rows)
            self._slot_status.add_key(key)

    def _claim(self, ctx: StepContext, outputs: SplitOutputs, published: Published) -> None:
        """Take the step's slots for its requests and register who writes them; both locks are held."""
        rows, requests, controller = ctx.rows, self._request_tasks, self._controller
        tenants = requests.tenants(rows)
        writers: dict[str, np.ndarray] = {}
        if outputs.immediate:
            published.tasks = tasks = self._immediate_tasks(ctx)
            if tasks and (tids := tasks[0].group.row_tids) is not None:
                writers.update(dict.fromkeys(outputs.immediate, tids))
        if outputs.deferred is not None:
            batch, published.opened, published.closed = requests.append(outputs.deferred, rows)
            writers.update(dict.fromkeys(outputs.deferred.tensors, batch.row_tids))
            assert outputs.deferred.budget is not None
            outputs.deferred.budget.holders.update(batch.tids)
            published.takers = batch.tids
        published.retired = self._slot_status.block_mates(rows.slots.numpy(), tenants)
        if published.retired.size:
            self._retire(published.retired)
        published.lost = self._slot_status.claim(rows.slots.numpy(), tenants, writers)
        for taken in published.lost:
            controller.take_over(*taken)
        controller.register(published.tasks, queued=True)
        controller.register(published.opened, queued=False)
        self._join_next_step_tids = [task.tid for task in published.tasks]

    def _immediate_tasks(self, ctx: StepContext) -> list[WriteTask]:
        page = ctx.d2h.staging_slot
        record = WriteRecord(ctx.rows.slots, {}, ctx.d2h.views)
        tasks = self._request_tasks.immediate(record, ctx.rows, ctx.step_id, page, ctx.d2h.event)
        if tasks:
            self._controller.staging.bind(page, tasks[0].group.holders)
        return tasks

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
