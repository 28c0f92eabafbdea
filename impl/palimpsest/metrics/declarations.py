"""The metrics of a prefix cache, each declared once: its name, what it says, its label, and how it is read.

Names are in vLLM's style, `palimpsest:` in place of `vllm:`; a counter is exposed with `_total` behind its name. Rates
and ratios are left to the query: each numerator's denominator is a counter, too. The table in the docs comes from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from palimpsest.prefix_cache.stats import by_key

if TYPE_CHECKING:
    from palimpsest.prefix_cache.manager import PrefixCacheManager

    Cache = PrefixCacheManager

PREFIX = "palimpsest:prefix_cache_"

COUNTER, GAUGE = "counter", "gauge"

Number = int | float
#: a value, or one for each value of the metric's label
Reading = Number | Mapping[str, Number]


class Metric(NamedTuple):
    """One metric. `read` takes no lock."""

    name: str
    kind: str
    says: str
    read: Callable[[Cache], Reading]
    label: str | None = None

    @property
    def exposed(self) -> str:
        """The name as it stands in a scrape and in a query."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == COUNTER else ''}"


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


def _copied_bytes(cache: Cache) -> Mapping[str, int]:
    """Rows by stage times the bytes of a row of their key."""
    stats, layouts = cache.stats, cache._pool.layouts.copy()
    stages = {
        "freeze": stats.rows_saved,
        "pool": stats.rows_written,
        "fetch": stats.rows_served,
        "deliver": stats.rows_delivered,
    }
    return {
        stage: sum(count * layouts[key].row_bytes for key, count in by_key(rows).items() if key in layouts)
        for stage, rows in stages.items()
    }


def _copy_seconds(cache: Cache) -> Mapping[str, float]:
    stats = cache.stats
    stages = {"freeze": stats.freeze_ns, "pool": stats.pool_ns, "fetch": stats.fetch_ns, "deliver": stats.deliver_ns}
    return {stage: _seconds(spent) for stage, spent in stages.items()}


def _queued(cache: Cache) -> Mapping[str, int]:
    board = cache._controller
    return {"high": len(board._queue_hi), "low": len(board._queue_lo)}


def _pages_in_use(cache: Cache) -> int:
    return sum(1 for holders in cache._controller.staging._busy if holders)


METRICS: tuple[Metric, ...] = (
    # what was asked for, and what a hit spared
    Metric("queries", COUNTER, "Prompt tokens of the requests that came.", lambda c: c.stats.query_tokens),
    Metric("hits", COUNTER, "Prompt tokens that were hits; of `queries`.", lambda c: c.stats.hit_tokens),
    Metric("hit_requests", COUNTER, "Requests that came with a hit.", lambda c: c.stats.hits),
    Metric("steps", COUNTER, "Steps saved.", lambda c: c.stats.steps),
    Metric("step_tokens", COUNTER, "Tokens of the steps saved.", lambda c: c.stats.tokens),
    # rows
    Metric("rows_saved", COUNTER, "Rows handed in.", lambda c: by_key(c.stats.rows_saved), "key"),
    Metric("rows_written", COUNTER, "Rows written into the pool.", lambda c: by_key(c.stats.rows_written), "key"),
    Metric("rows_served", COUNTER, "Rows of hits that were fetched.", lambda c: by_key(c.stats.rows_served), "key"),
    Metric("rows_delivered", COUNTER, "Steps' own rows given out.", lambda c: by_key(c.stats.rows_delivered), "key"),
    Metric(
        "copied_bytes",
        COUNTER,
        "Bytes copied: off the live buffers (`freeze`), into the pool (`pool`), out of the pool or a clone for a hit "
        "(`fetch`), off a staging page (`deliver`).",
        _copied_bytes,
        "stage",
    ),
    Metric(
        "copy_seconds",
        COUNTER,
        "Time of those copies; on an accelerator `freeze` is the time to queue them.",
        _copy_seconds,
        "stage",
    ),
    # waits
    Metric("staging_pages", GAUGE, "Staging pages.", lambda c: c.config.staging_depth),
    Metric("staging_pages_in_use", GAUGE, "Staging pages with a holder.", _pages_in_use),
    Metric("staging_waits", COUNTER, "Saves that waited for a page; of `steps`.", lambda c: c.stats.page_waits),
    Metric(
        "staging_wait_seconds", COUNTER, "Time they waited (ended waits).", lambda c: _seconds(c.stats.page_wait_ns)
    ),
    Metric("write_waits", COUNTER, "Waits for a write that took time.", lambda c: c.stats.joins_waited),
    Metric("write_wait_seconds", COUNTER, "Time in waits for writes.", lambda c: _seconds(c.stats.join_ns)),
    # the byte budget
    Metric("budget_bytes", GAUGE, "The byte budget of deferred clones.", lambda c: c.config.gpu_staging_bytes),
    Metric("budget_bytes_in_use", GAUGE, "Bytes charged against it.", lambda c: c._controller._staged_bytes),
    Metric("budget_flushes", COUNTER, "Flushes because a step did not fit it; of `steps`.", lambda c: c.stats.flushes),
    # what is on its way
    Metric("pending_reads", GAUGE, "Planned reads not yet over.", lambda c: len(c._hits.pending)),
    Metric("unconsumed_steps", GAUGE, "Steps saved and not yet consumed.", lambda c: len(c._step_ctxs)),
    Metric("pending_writes", GAUGE, "Write tasks not yet drained.", lambda c: len(c._controller._tasks)),
    Metric("queued_writes", GAUGE, "Write tasks in a queue.", _queued, "queue"),
    Metric(
        "live_requests", GAUGE, "Requests that saved rows and have not ended.", lambda c: len(c._request_tasks.live)
    ),
    # what the protocol had to do
    Metric("preserved_rows", COUNTER, "Rows copied aside before a claim.", lambda c: c.stats.rows_preserved),
    Metric("replanned_hits", COUNTER, "Hits planned again: rows of their step.", lambda c: c.stats.hits_replanned),
    Metric("rejected_rows", COUNTER, "Rows refused by their version; each raised.", lambda c: c.stats.rows_rejected),
    Metric("corrupt_rows", COUNTER, "Rows that a row check found wrong.", lambda c: c.stats.rows_corrupt),
    Metric("writes", COUNTER, "Write tasks written.", lambda c: c.stats.writes),
    Metric("failed_writes", COUNTER, "Write tasks lost; any is fatal.", lambda c: c.stats.writes_failed),
)


def as_table() -> str:
    """The metrics as a Markdown table, for the docs."""
    lines = ["| metric | kind | label | says |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.exposed}` | {m.kind} | {f'`{m.label}`' if m.label else ''} | {m.says} |" for m in METRICS]
    return "\n".join(lines) + "\n"
