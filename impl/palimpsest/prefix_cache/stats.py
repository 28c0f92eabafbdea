"""Counters of what a prefix cache did since it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.prefix_cache.steps import StepContext


@dataclass
class Stats:
    """Monotone counts; written under the state lock, read without it."""

    steps: int = 0
    tokens: int = 0
    hits: int = 0
    hit_tokens: int = 0
    hits_replanned: int = 0
    rows_preserved: int = 0
    flushes: int = 0
    waits: int = 0

    def count_step(self, ctx: StepContext, replanned: int) -> None:
        """Count a published step."""
        self.steps += 1
        self.tokens += ctx.rows.shape.count
        self.hits += len(ctx.hits)
        self.hit_tokens += sum(tokens for tokens, _ in ctx.hits.values())
        self.hits_replanned += replanned
