"""What the engine side and the builder side of a prefix cache share, and who guards it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable
from functools import partial

import numpy as np
import torch

from palimpsest.actions import action
from palimpsest.errors import ShutdownError, WriteFailedError
from palimpsest.memory import format_gib
from palimpsest.prefix_cache import events
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.buffers import OutputBuffers
from palimpsest.prefix_cache.controller import PrefixCacheController
from palimpsest.prefix_cache.copies import Copies, has_accelerator
from palimpsest.prefix_cache.hits import HitReader
from palimpsest.prefix_cache.interface import ModelCachePolicy, PrefixCacheConfig, WriteSchedule
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.recording import Recording, recorder_of, tables_of
from palimpsest.prefix_cache.requests import RequestTasks
from palimpsest.prefix_cache.row_checks import make_guard
from palimpsest.prefix_cache.sizing import plan_memory, require_memory
from palimpsest.prefix_cache.slots import SlotTable
from palimpsest.prefix_cache.slow_waits import SlowWaits
from palimpsest.prefix_cache.staging import StagingBufferHolder
from palimpsest.prefix_cache.stats import Stats
from palimpsest.prefix_cache.steps import BatchShape, BegunStep, GroupView, Reads, StepContext
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.sync import Sync
from palimpsest.trace import Sink

logger = logging.getLogger("palimpsest.prefix_cache.manager")

PREFETCH_NAME = "omni-prefix-cache-prefetch"  # upstream's name, which its tests look for


class CacheState:
    """The structures of one prefix cache, joined by the state lock."""

    def __init__(
        self, config: PrefixCacheConfig, view: GroupView, eager: bool | None, sync: Sync, trace: Sink | None
    ) -> None:
        self.config, self.stats = config, Stats()
        recorder = recorder_of(config, trace)
        #: writes the last events out when the cache raises; None where none are kept
        self.recording = None if recorder is None else Recording(recorder, config.flight_recorder_dir)
        trace = recorder if recorder is not None else trace
        self._view, self._sync, self._trace = view, sync, trace
        self._pinned = accelerated = has_accelerator()
        plan = plan_memory(config, config.layouts, config.layouts, pinned=self._pinned)
        require_memory(plan, f"{config.num_slots} slots and {config.staging_depth} staging pages")
        self._state_lock = sync.lock()
        self._pool = PrefixBlockPool(config)
        self._copies = Copies(config.staging_claim_timeout_s, sync, SlowWaits(config.slow_wait_s))
        #: what is checked of delivered rows; None for nothing
        self._guard = make_guard(config, self._copies, self.stats)
        self._controller = PrefixCacheController(
            self._pool, config, not accelerated if eager is None else eager,
            pinned=accelerated, sync=sync, trace=trace, stats=self.stats,
        )  # fmt: skip
        self._controller.staging.guard = self._guard
        self._buffers = OutputBuffers()
        self._prefetch_pool = sync.executor(PREFETCH_NAME)
        #: guarded by the state lock, as all of the following
        self._slot_status = SlotTable(config.num_blocks, config.block_size)
        self._hits = HitReader(self._slot_status, self._pool, self._controller, self._state_lock, trace, self.stats)
        self._hits.guard = self._guard
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
        self._log_start(str(plan))
        if recorder is not None:
            recorder.tables = partial(tables_of, self._slot_status, self._request_tasks)
        if trace is not None:
            trace.begin(
                {
                    "num_blocks": config.num_blocks,
                    "block_size": config.block_size,
                    "pages": config.staging_depth,
                    "budget_bytes": config.gpu_staging_bytes,
                    "eager": self._controller.eager,
                }
            )

    def _log_start(self, plan: str) -> None:
        config = self.config
        recorded = config.flight_recorder_events
        logger.info(
            "prefix cache: %d blocks of %d slots, %d %sstaging pages of %d tokens, %s; declared keys %s take %s; "
            "budget of deferred clones %s; row checks %s; %s",
            config.num_blocks, config.block_size, config.staging_depth, "pinned " if self._pinned else "",
            config.staging_capacity_tokens, "eager" if self._controller.eager else "threaded",
            {key: str(layout) for key, layout in config.layouts.items()}, plan, format_gib(config.gpu_staging_bytes),
            config.row_checks.value, f"flight recorder of {recorded} events" if recorded else "no flight recorder",
        )  # fmt: skip

    @property
    def _pending_reads(self) -> Collection[PendingRead]:
        return self._hits.pending

    def _check_open(self) -> None:
        if self._closed:
            raise ShutdownError("the prefix cache was shut down")

    # The callers of the next three hold the state lock.

    def _commit_drained_writes(self) -> None:
        """Make finished writes visible. Raises `WriteFailedError` when a write has failed."""
        if self._controller.has_records():
            self.drain()
        if self._failure is not None:
            task = self._failure
            slots = [int(slot) for chunk in task.chunks[:4] for slot in chunk.slots_cpu[:4]]
            raise WriteFailedError(
                f"a write failed: {task}, slots {slots} and on; the cache serves nothing from here on"
            ) from self._controller.cause_of(task.tid)

    @action("drain")
    def drain(self) -> None:
        """Take the records of finished writes and make their rows readable; the state lock is held, too."""
        with self._controller.lock:
            completed, landed, failed = self._controller.take_records()
            for write in (write for landing in landed for write in landing.writes):
                self._slot_status.commit(write.key, write.at, write.tids)
            if failed and self._failure is None:
                self._failure = failed[0]
            if self._trace is not None:
                self._trace.emit("drain", {}, events.drained(completed, landed, failed, self._slot_status))

    def _retire(self, slots: np.ndarray) -> None:
        """Let go of the rows of blocks that changed hands; the task lock is held, too.

        A deferred task no longer writes them. An immediate one still does: it is done before anyone may claim
        the slots, and a read planned before may need its rows.
        """
        for tid, key, lost in self._slot_status.retire(slots):
            task = self._controller.get_task(tid)
            if task is not None and task.schedule is WriteSchedule.JOIN_ON_FINISH:
                self._controller.take_over(tid, key, lost)
                self._slot_status.forget_writer(key, lost)

    def _drop_begun(self) -> list[int]:
        """Let go of a begun step that was never published: an idle step, or one that is tried again."""
        begun, self._begun = self._begun, None
        return self._hits.drop_all(all_reads(begun.reads)) if begun is not None else []

    def _commit(self) -> None:
        with self._state_lock:
            self._commit_drained_writes()

    def _leave_page(self, ctx: StepContext) -> None:
        self._controller.staging.release_page(ctx.d2h.staging_slot, [StagingBufferHolder.for_step(ctx.step_id)])

    def _fetch_merged(self, read: PendingRead, new_rows: int) -> torch.Tensor:
        """A buffer for the whole prompt of a hit, its prefix rows filled in."""
        layout = self._pool.layout(read.key)
        merged = self._buffers.empty((read.slots.size + new_rows, *layout.row_shape), layout.dtype)
        self._hits.fetch(read, merged[: read.slots.size])
        return merged

    # What upstream's tests call.

    def _slot_ref(self, slots: torch.Tensor, key: str, req_id: str) -> PendingRead:
        return self._hits.plan(slots.numpy(), key, req_id)

    def _fetch_source(self, read: PendingRead) -> torch.Tensor:
        return self._hits.fetch(read)

    def _ensure_not_reassigned(
        self, slots: torch.Tensor, key: str, *, req_id: str, planned_version: torch.Tensor
    ) -> None:
        self._hits.ensure_current(slots.numpy(), key, req_id, planned_version.numpy())


def all_reads(reads: Reads) -> Iterable[PendingRead]:
    """The reads of every request and key."""
    return [read for of_request in reads.values() for read in of_request.values()]
