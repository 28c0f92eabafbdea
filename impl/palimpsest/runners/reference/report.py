"""What a run of the reference runner did: counters of scheduler, oracle and cache, and their table."""

from __future__ import annotations

from dataclasses import dataclass

from palimpsest.prefix_cache.stats import Stats
from palimpsest.runners.reference.oracle import Verdict
from palimpsest.runners.reference.plan import Counts


@dataclass
class Report:
    """Live counters; read them at any time."""

    scheduler: Counts
    verdict: Verdict
    cache: Stats
    #: steps over whose following save the prefetch thread was held by script
    held_steps: int = 0

    @property
    def right(self) -> bool:
        """Whether rows were checked and none was wrong."""
        return self.verdict.rows_checked > 0 and self.verdict.rows_wrong == 0

    def lines(self, events: int | None = None) -> list[tuple[str, str]]:
        """The table's lines: what was counted, and the count. `events` is None where none were traced."""
        counts, verdict, cache = self.scheduler, self.verdict, self.cache
        numbers: list[tuple[str, int]] = [
            ("requests", counts.requests),
            ("tokens", counts.tokens),
            ("steps", cache.steps),
            ("hits", counts.hits),
            ("multi-block hits", counts.multi_block_hits),
            ("same-step hits", counts.same_step_hits),
            ("rows checked", verdict.rows_checked),
            ("rows wrong", verdict.rows_wrong),
            ("  by identity", verdict.identity_wrong),
            ("  by recomputation", verdict.values_wrong),
            ("rows preserved", cache.rows_preserved),
            ("hits re-planned", cache.hits_replanned),
            ("waits", cache.waits),
            ("budget flushes", cache.flushes),
            ("preemptions", counts.preemptions),
            ("aborts", counts.aborted),
            ("steps held by script", self.held_steps),
        ]
        table = [(name, f"{number:,}") for name, number in numbers]
        table.append(("largest difference", f"{verdict.max_error:.2g}"))
        table.append(("events", "not traced" if events is None else f"{events:,}"))
        return table
