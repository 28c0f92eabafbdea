"""How the engine thread begins a step: ended requests are let go, hits registered and their reads planned."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.memory import with_ordinary_tensors
from palimpsest.prefix_cache import events, steps
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.recording import recorded
from palimpsest.prefix_cache.slots import NO_SLOTS
from palimpsest.prefix_cache.state import CacheState, all_reads
from palimpsest.prefix_cache.steps import BegunStep


class BeginSide(CacheState):
    """`new_step_starts`, and the action that it is made of."""

    @recorded
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
                if begun is not None:
                    begun.query_tokens = schedule.query_tokens
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
                    futures[key] = self._submit(read, new_rows)

    def _submit(self, read: PendingRead, new_rows: int) -> Future[torch.Tensor]:
        try:
            return self._prefetch_pool.submit(self._fetch_merged, read, new_rows)
        except RuntimeError:
            self._check_open()  # shutdown has ended the thread meanwhile
            raise
