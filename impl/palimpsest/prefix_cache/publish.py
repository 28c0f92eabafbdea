"""How a saved step becomes part of the cache: its rows are frozen, then everything is published at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from time import perf_counter_ns as now_ns
from typing import Any

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.prefix_cache import events
from palimpsest.prefix_cache.begin import BeginSide
from palimpsest.prefix_cache.copies import Copies, LandedEvent
from palimpsest.prefix_cache.events import Published
from palimpsest.prefix_cache.group import tids_of
from palimpsest.prefix_cache.hits import Aside
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout, PrefixCacheConfig
from palimpsest.prefix_cache.records import Rows, WriteRecord
from palimpsest.prefix_cache.split import SplitOutputs
from palimpsest.prefix_cache.steps import BegunStep, StepContext, StepCopies, StepRows
from palimpsest.prefix_cache.tasks import WriteTask

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


class PublishSide(BeginSide):
    """The actions that take a step from its live buffers into the cache."""

    @action("freeze")
    def freeze(self, step_id: int, page: int, rows: StepRows, outputs: SplitOutputs, storage: Storage) -> StepContext:
        """Queue the copies of the live buffers, so that what was handed in is what lands."""
        began = now_ns()
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
            if all(rows.device.type == "cpu" for rows in deferred.tensors.values()):
                deferred.host = deferred.tensors
        if self._trace is not None:
            args = {"step": step_id, "page": page, "keys": list(views)}
            frozen = {**outputs.immediate, **(deferred.tensors if deferred is not None else {})}
            self._trace.emit("freeze", args, {"tags": events.tags(self._trace, frozen)})
            if event is None:
                self.copy_lands(args, views)
            else:
                event.on_landed = partial(self.copy_lands, args, views)
        self._name_copies((event, snapshot_event), step_id, page)
        begun = self._begun
        if begun is None:
            self._check_open()  # shutdown took it
        assert begun is not None
        self.stats.freeze_ns += now_ns() - began
        ctx = StepContext(
            step_id, rows, begun.hits, begun.reads, begun.prefetches, StepCopies(page, views, event), snapshot,
            snapshot_event, frozenset(deferred.tensors if deferred is not None else ()), HIDDEN_KEY in views,
        )  # fmt: skip
        if self._guard is not None:
            self._guard.frozen(ctx, {**outputs.immediate, **(deferred.tensors if deferred is not None else {})})
        return ctx

    def _name_copies(self, landing: Iterable[LandedEvent | None], step_id: int, page: int) -> None:
        """Have who waits for a step's copies, say so."""
        for event in landing:
            if event is not None:
                event.says = partial(self._copies_of, step_id, page)

    def _copies_of(self, step_id: int, page: int) -> str:
        holders = ", ".join(map(str, self._controller.staging.holders_of(page)))
        return f"the copies of step {step_id} to page {page}, held by {holders or 'nobody'}"

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
            begun, slots = self._begun, ctx.rows.at
            assert begun is not None
            overtaken = self._overtaken(begun, slots)
            # What may fail comes first: until here the step can be saved again.
            copies = self._copy_aside(slots, overtaken, begun)
            self._install_keys(storage)
            published = Published(preserved=self._hits.preserve(copies))
            published.dropped = self._drop_overtaken(begun, overtaken)
            with self._controller.lock:
                self._claim(ctx, outputs, published)
                if self._guard is not None:
                    self._guard.claimed(ctx, self._slot_status, self._pool)
                published.reads = [read for req_id in begun.hits for read in self._plan_hit(begun, req_id)]
                self._step_ctxs[ctx.step_id], self._begun = ctx, None
                self.stats.count_step(ctx, len(overtaken), begun.query_tokens, ctx.deferred_keys)
                if self._trace is not None:
                    holders = self._controller.staging.told(ctx.d2h.staging_slot)
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
            if tasks and (row_tids := tasks[0].group.row_tids) is not None:
                writers.update(dict.fromkeys(outputs.immediate, row_tids))
        if outputs.deferred is not None:
            batch, published.opened, published.closed = requests.append(outputs.deferred, rows)
            writers.update(dict.fromkeys(outputs.deferred.tensors, batch.row_tids))
            assert outputs.deferred.budget is not None
            outputs.deferred.budget.holders = batch.holders
            published.takers = batch.tids
        published.retired = self._slot_status.block_mates(rows.at, tenants)
        if published.retired.size:
            self._retire(published.retired)
        published.lost = self._slot_status.claim(rows.at, tenants, writers)
        for taken in published.lost:
            controller.take_over(*taken)
        controller.register(published.tasks, queued=True)
        controller.register(published.opened, queued=False)
        self._join_next_step_tids = list(tids_of(published.tasks))

    def _immediate_tasks(self, ctx: StepContext) -> list[WriteTask]:
        page = ctx.d2h.staging_slot
        record = WriteRecord(ctx.rows.slots, {}, ctx.d2h.views)
        tasks = self._request_tasks.immediate(record, ctx.rows, ctx.step_id, page, ctx.d2h.event)
        if tasks:
            self._controller.staging.bind(page, tasks[0].group.tids)
        return tasks
