"""What the events of the manager's actions say, read from the real structures under the state lock.

Arrays are copies. A read is told by its number, its request and key, and for each row its planned version
and source; a published step by its rows, the tasks that write them and the slots after the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palimpsest.prefix_cache.group import tids_of
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.records import PoolWrite
from palimpsest.prefix_cache.slots import NO_SLOTS, SlotTable, Takeover
from palimpsest.prefix_cache.split import SplitOutputs
from palimpsest.prefix_cache.steps import Hits, StepContext
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest.trace import Sink

FROM_POOL, STAGED, NOTHING = 0, 1, 2


def planned(reads: Iterable[PendingRead]) -> list[dict[str, Any]]:
    """Reads as they were planned."""
    return [
        {
            "read": read.rid,
            "request": read.req_id,
            "key": read.key,
            "slots": read.slots.copy(),
            "versions": read.versions.copy(),
            "sources": _sources(read),
            "joins": list(read.join_tids),
        }
        for read in reads
    ]


def _sources(read: PendingRead) -> np.ndarray:
    sources = np.full(read.slots.size, FROM_POOL, dtype=np.int8)
    if read.absent is not None:
        sources[read.absent] = NOTHING
    for _, rows in read.staged_list:
        sources[rows] = STAGED
    return sources


def hits(registered: Hits) -> list[dict[str, Any]]:
    """Registered hits."""
    return [{"request": req_id, "blocks": blocks} for req_id, (_, blocks) in registered.items()]


def drained(
    completed: list[WriteTask], landed: list[PoolWrite], failed: list[WriteTask], slots: SlotTable
) -> dict[str, Any]:
    """Tasks whose records were drained, and the status of the slots that they wrote."""
    return {
        "written": list(tids_of(completed)),
        "failed": list(tids_of(failed)),
        "status": [
            {"key": write.key, "slots": write.at.copy(), "status": slots.get_slot_status(write.key).status[write.at]}
            for landing in landed
            for write in landing.writes
        ],
    }


@dataclass
class Published:
    """What a publish did besides claiming slots."""

    preserved: list[tuple[int, np.ndarray]]
    retired: np.ndarray = field(default_factory=lambda: NO_SLOTS)
    dropped: list[int] = field(default_factory=list)
    tasks: list[WriteTask] = field(default_factory=list)
    takers: list[int] = field(default_factory=list)
    opened: list[WriteTask] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    lost: list[Takeover] = field(default_factory=list)
    reads: list[PendingRead] = field(default_factory=list)


def published(
    ctx: StepContext,
    outputs: SplitOutputs,
    done: Published,
    slots: SlotTable,
    holders: list[tuple[str, int]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A published step: its rows, request after request, and what became of slots, tasks, reads and page."""
    shape, deferred = ctx.rows.shape, outputs.deferred
    late = deferred.tensors if deferred is not None else {}
    args = {
        "step": ctx.step_id,
        "page": ctx.d2h.staging_slot,
        "requests": [req_id for req_id, _, _ in shape.shares()],
        "counts": [count for count in shape.counts if count],
        "slots": ctx.rows.at.copy(),
        "immediate": list(outputs.immediate),
        "deferred": list(late),
        "nbytes": deferred.budget.nbytes if deferred is not None and deferred.budget is not None else 0,
    }
    post = {
        "preserved": [{"read": rid, "rows": rows} for rid, rows in done.preserved],
        "dropped": done.dropped,
        "retired": done.retired,
        "tids": list(tids_of(done.tasks)),
        "takers": list(done.takers),
        "opened": list(tids_of(done.opened)),
        "closed": done.closed,
        "lost": [{"tid": tid, "key": key, "slots": at.copy()} for tid, key, at in done.lost],
        "reads": planned(done.reads),
        "slots": slots.snapshot(ctx.rows.at),
        "holders": holders,
    }
    return args, post


def pool_rows(trace: Sink, write: PoolWrite) -> list[dict[str, Any]]:
    """The rows that a pool write writes, with their identities where they are tagged."""
    return [
        {"key": w.key, "slots": w.at.copy(), "tids": w.tids.copy(), "tags": tags(trace, {w.key: w.rows})}
        for w in write.writes
    ]


def tags(trace: Sink, rows: Mapping[str, Any]) -> dict[str, Any]:
    """The identities read from rows, for the keys whose rows are tagged."""
    if trace.tag is None:
        return {}
    read = {key: trace.tag(key, values) for key, values in rows.items() if len(values)}
    return {key: tag for key, tag in read.items() if tag is not None}
