"""The sparse runner: requests through a small model whose rows are mirrored, with every row compared.

One step: imports, `start_step`, the target's forward over the batch, verification of drafts, `finish_forward`, the
draft layer over the accepted tokens, `finish_draft`, acknowledgements. An idle step has only the first and the last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from palimpsest.host_mirror import HostMirror, HostMirrorConfig, LayerSpec, MirrorBatch
from palimpsest.host_mirror.ranks import RankGroup
from palimpsest.runners.sparse.blocks import HostBlocks, ResidentBlocks
from palimpsest.runners.sparse.forward import Forward
from palimpsest.runners.sparse.judge import RowJudge, Verdict, identity
from palimpsest.runners.sparse.model import IntArray, PlainRun, SparseDecoder, SparseSize
from palimpsest.runners.sparse.plan import SparsePlan
from palimpsest.runners.sparse.requests import Sequence as Served
from palimpsest.runners.sparse.requests import SparseRequest
from palimpsest.runners.sparse.scheduler import Counts, Limits, SparseScheduler
from palimpsest.trace import Sink


@dataclass(frozen=True)
class SparseSettings:
    """How the runner is set up."""

    block_rows: int = 4
    num_host_blocks: int = 64
    num_resident_blocks: int = 12
    max_requests: int = 4
    max_rows: int = 24
    max_tokens: int = 64
    draft_tokens: int = 2
    hot_rows: int = 20
    eager: bool = True
    device: str = "cpu"
    seed: int = 0
    timeout_s: float = 30.0
    engine_id: str = "sparse-runner"
    #: chance of each drafted token to be right
    draft_luck: float = 0.6
    max_steps: int = 2000


@dataclass(frozen=True)
class SparseReport:
    """What happened, and what was found."""

    counts: Counts
    verdict: Verdict
    hot_hits: int
    hot_misses: int


class SparseRunner:
    """Serves `requests` once. `ranks`: every rank runs the same steps; rank 0 writes the shared host pool.

    `on_step` is called with the step's number before its forward; `trace` gets the mirror's events.
    """

    def __init__(
        self,
        requests: Sequence[SparseRequest],
        settings: SparseSettings,
        *,
        ranks: RankGroup | None = None,
        on_step: Callable[[int], None] | None = None,
        trace: Sink | None = None,
    ) -> None:
        if not settings.eager and any(request.forks for request in requests):
            raise ValueError("a request forks from rows on the host, which only eager mirroring has at any time")
        self.settings, self._on_step = settings, on_step
        self.size = SparseSize()
        self.model = SparseDecoder(self.size, settings.seed, torch.device(settings.device))
        self.mirror = HostMirror(_mirror_config(settings, self.size), ranks=ranks, trace=trace)
        chunk = settings.hot_rows // self.size.top_k
        limits = Limits(
            settings.block_rows, settings.max_requests, settings.max_rows, settings.max_rows // 2, chunk,
            settings.draft_tokens,
        )  # fmt: skip
        host = HostBlocks(settings.num_host_blocks)
        resident = ResidentBlocks(settings.num_resident_blocks, self.mirror.config.num_sources)
        self.scheduler = SparseScheduler(requests, limits, host, resident, self._propose)
        self._random = random.Random(settings.seed)
        self._answers: dict[int, list[int]] = {}
        self._plains: dict[int, PlainRun] = {}
        for sequence in self.scheduler.sequences:
            self._answers[sequence.number], self._plains[sequence.number] = self._run_plainly(sequence.request)
        self.judge = RowJudge(self.mirror, self.size, self._plains, eager=settings.eager)
        self._forward = Forward(self.model, self.mirror, self.judge, settings.max_tokens)

    def _run_plainly(self, request: SparseRequest) -> tuple[list[int], PlainRun]:
        """All tokens that the request will have, and the rows of each."""
        tokens = list(request.prompt)
        if len(tokens) + request.max_tokens > self.settings.max_tokens:
            raise ValueError(f"request {request.req_id!r} takes more than {self.settings.max_tokens} tokens")
        for _ in range(request.max_tokens):
            tokens.extend(self.model.next_tokens(self.model.plain(tokens).hidden[-1:]))
        return tokens, self.model.plain(tokens)

    def _propose(self, sequence: Served, count: int) -> list[int]:
        """Draft tokens: the right ones, but for bad luck."""
        known = len(sequence.tokens)
        right = self._answers[sequence.number][known : known + count]
        lucky = [self._random.random() < self.settings.draft_luck for _ in right]
        return [token if luck else (token + 1) % self.size.vocabulary for token, luck in zip(right, lucky, strict=True)]

    # ------------------------------------------------------------ steps

    def run(self) -> SparseReport:
        """Serve every request; gives the report. Shuts the mirror down on every path."""
        self.mirror.initialize()
        try:
            while not self.scheduler.done:
                if self.scheduler.counts.steps >= self.settings.max_steps:
                    raise RuntimeError(f"not done after {self.settings.max_steps} steps")
                self._step()
            return self._report()
        finally:
            self.mirror.shutdown()

    def _report(self) -> SparseReport:
        groups = [runtime.index_group.swap_stats.tolist() for runtime in self.mirror.worker.leader_runtimes]
        hits, misses = (sum(column) for column in zip(*groups, strict=True))
        return SparseReport(self.scheduler.counts, self.judge.verdict, hits, misses)

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        self._place(plan)
        block_rows = self.settings.block_rows
        self.mirror.start_step(plan.metadata(block_rows), [share.sequence.req_id for share in plan.shares])
        if self._on_step is not None:
            self._on_step(plan.number)
        if plan.shares:
            self._compute(plan, plan.batch(block_rows))
        self.mirror.settle()
        ended = self.mirror.ranks.from_writer(self.mirror.take_completed_transfers())
        self.judge.clean(self.scheduler.acknowledge(ended), plan.number)
        self.judge.after_step(self.scheduler.sequences, plan.number)

    def _place(self, plan: SparsePlan) -> None:
        for state, sequence in plan.arrived:
            self.mirror.set_request(state, sequence.host_blocks)
            self._forward.arrive(sequence, self._plains[sequence.number])
        for share in plan.shares:
            assert share.sequence.state is not None
            self.mirror.pages.set_host(share.sequence.state, share.sequence.host_blocks)
        for sequence in plan.imports:
            self._import(sequence)

    def _import(self, sequence: Served) -> None:
        rows, count = self.settings.block_rows, sequence.request.imported
        slots = np.array([sequence.host_blocks[at // rows] * rows + at % rows for at in range(count)], dtype=np.int64)
        for layer, latent in enumerate(self._plains[sequence.number].rows):
            tags = identity(sequence.writers[:count], range(count), layer)
            self.mirror.import_rows(layer, slots, torch.cat([latent[:count].cpu(), tags], dim=1))

    def _compute(self, plan: SparsePlan, batch: MirrorBatch) -> None:
        self.mirror.begin_forward(batch)
        hidden = self._forward.target(plan)
        accepted = self._verify(plan, hidden)
        refines = self.mirror.config.refines and batch.deferred
        self.mirror.finish_forward(accepted if refines else None)
        kept = np.flatnonzero(accepted)
        self.mirror.begin_draft(
            MirrorBatch(
                batch.states, batch.row_states[kept], batch.host_slots[kept], batch.resident_slots[:, kept],
                deferred=batch.deferred,
            )
        )  # fmt: skip
        self._forward.draft(hidden, kept)
        self.mirror.finish_draft()

    def _verify(self, plan: SparsePlan, hidden: torch.Tensor) -> IntArray:
        """Take drafts as long as they are what the model says; gives a mask of the rows that stand."""
        said = self.model.next_tokens(hidden)
        accepted: list[int] = []
        row = 0
        for share in plan.shares:
            known = len(share.tokens) - share.drafts
            right = 0
            while right < share.drafts and said[row + known - 1 + right] == share.tokens[known + right]:
                right += 1
            count = known + right
            sampled = share.start + known == len(share.sequence.tokens)
            tokens = [*share.tokens[known : known + right], said[row + count - 1]] if sampled else []
            accepted += [1] * count + [0] * (len(share.tokens) - count)
            self.judge.reject(share.sequence, range(share.start + count, share.stop), plan.number)
            self.scheduler.update(share, count, tokens)
            row += len(share.tokens)
        return np.array(accepted, dtype=np.int64)


def _mirror_config(settings: SparseSettings, size: SparseSize) -> HostMirrorConfig:
    layers = tuple(
        LayerSpec(
            f"layers.{layer}.attn", size.row_width, leader=layer in size.leaders, source=size.sources[layer],
            draft=layer == size.draft,
        )
        for layer in range(size.layers)
    )  # fmt: skip
    return HostMirrorConfig(
        layers=layers,
        block_rows=settings.block_rows,
        num_host_blocks=settings.num_host_blocks,
        num_resident_blocks=settings.num_resident_blocks,
        max_requests=settings.max_requests,
        max_pages=-(-settings.max_tokens // settings.block_rows) + 1,
        max_rows=settings.max_rows,
        top_k=size.top_k,
        hot_rows=settings.hot_rows,
        dtype=torch.float64,
        device=settings.device,
        eager=settings.eager,
        draft_tokens=settings.draft_tokens,
        timeout_s=settings.timeout_s,
        engine_id=settings.engine_id,
        max_chunk_bytes=1 << 14,
    )
