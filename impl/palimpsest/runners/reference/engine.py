"""The reference runner: real requests through a real small model, with every output going through the cache.

One step: begin it in the cache, run the forward into live buffers that are overwritten in place, save them,
and hand the *previous* step to the builder thread. So the builder is always a step behind, and a step's
planned reads can be pending while the next step takes their blocks over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from palimpsest.prefix_cache.group_view import FullAttentionGroupView
from palimpsest.prefix_cache.interface import KeyLayout, PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.settings import from_environment
from palimpsest.runners.reference.batch import InputBatch
from palimpsest.runners.reference.blocks import BlockManager
from palimpsest.runners.reference.builder import OutputBuilder, SavedStep
from palimpsest.runners.reference.hold import HoldableSync, HoldScript
from palimpsest.runners.reference.model import Decoder, ModelSize, PagedKV, Span
from palimpsest.runners.reference.oracle import Oracle
from palimpsest.runners.reference.outputs import POLICY, LiveBuffers, output_values
from palimpsest.runners.reference.plan import Share, StepPlan
from palimpsest.runners.reference.report import Report
from palimpsest.runners.reference.requests import Request
from palimpsest.runners.reference.scheduler import Scheduler
from palimpsest.trace import Sink


@dataclass(frozen=True)
class RunnerSettings:
    """How the runner is set up. `dtype` is that of the saved rows; the model computes in float32."""

    num_blocks: int = 96
    block_size: int = 8
    max_sequences: int = 16
    max_tokens: int = 256
    #: tokens that a step's buffers are padded to a multiple of, as for CUDA graphs
    pad_to: int = 8
    #: of each `HOLD_PERIOD` steps with hits, how many have the prefetch thread held over the next save
    held: int = 3
    #: steps that may wait for the builder
    builder_depth: int = 2
    #: bytes of deferred rows that may be staged: few enough that flushes happen
    gpu_staging_bytes: int = 1 << 20
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    timeout_s: float = 60.0

    @property
    def padded_tokens(self) -> int:
        """The largest padded step."""
        return -(-self.max_tokens // self.pad_to) * self.pad_to


class ReferenceRunner:
    """Serves `requests` once, in threaded mode. `on_step` is called with the report after each step."""

    def __init__(
        self,
        requests: Sequence[Request],
        settings: RunnerSettings,
        *,
        trace: Sink | None = None,
        on_step: Callable[[Report], None] | None = None,
    ) -> None:
        self.settings, self._trace, self._on_step = settings, trace, on_step
        size, device = ModelSize(), torch.device(settings.device)
        self.blocks = BlockManager(settings.num_blocks, settings.block_size)
        self.scheduler = Scheduler(
            requests, self.blocks, max_sequences=settings.max_sequences, max_tokens=settings.max_tokens
        )
        self.model = Decoder(size, settings.seed, device)
        self._kv = PagedKV(size, settings.num_blocks * settings.block_size, device)
        self._live = LiveBuffers(size, settings.padded_tokens, settings.dtype, device)
        self._batch = InputBatch(settings.max_sequences, settings.num_blocks)
        self._sync = HoldableSync(settings.timeout_s)
        self.cache = self._make_cache()
        self._hold = HoldScript(self._sync, settings.held)
        self.oracle = Oracle(self._live.keys, self.recompute)
        self.report = Report(self.scheduler.counts, self.oracle.verdict, self.cache.stats)
        self._saved: tuple[int, StepPlan] | None = None

    def _make_cache(self) -> PrefixCacheManager:
        settings = self.settings
        fields: dict[str, Any] = {
            "staging_capacity_tokens": settings.max_tokens,
            "staging_claim_timeout_s": settings.timeout_s,
            "gpu_staging_bytes": settings.gpu_staging_bytes,
            "layouts": {key.name: KeyLayout(settings.dtype, key.row_shape) for key in self._live.keys},
            **from_environment(),
        }
        config = PrefixCacheConfig(settings.num_blocks, settings.block_size, **fields)
        view = FullAttentionGroupView(self._batch, block_size=settings.block_size)
        cache = PrefixCacheManager(config, view, eager=False, sync=self._sync, trace=self._trace)
        cache.register_policy(POLICY)
        return cache

    def recompute(self, tokens: list[int]) -> dict[str, torch.Tensor]:
        """Every output's values for a whole sequence, from a plain forward."""
        hidden = self.model.plain(torch.tensor(tokens, device=self.model.device))
        return output_values(self.model, hidden)

    def run(self) -> Report:
        """Serve every request; gives the report. Raises what the cache or the builder raised."""
        builder = OutputBuilder(self.cache, self.oracle, self.settings.builder_depth, self.settings.timeout_s)
        try:
            self._serve(builder)
        except BaseException as error:
            self._hold.release()
            builder.abandon(error)
            raise
        finally:
            self._hold.release()
            self.cache.shutdown()
        return self.report

    def _serve(self, builder: OutputBuilder) -> None:
        with torch.inference_mode():
            while not self.scheduler.done:
                self._step(builder)
            self._settle(builder)
            builder.close()
            for sequence in self.scheduler.take_ended():
                self.oracle.judge(sequence)
        self._check_end()

    def _check_end(self) -> None:
        """Nothing is held by the cache or by a request, and no row is left without a verdict."""
        self.cache.check_invariants()
        self.blocks.check()
        if self.blocks.free_count < self.blocks.num_blocks or self.oracle.unjudged:
            raise RuntimeError("requests hold KV blocks, or rows were not judged, after the last step")

    # ---------------------------------------------------------------- one step

    def _step(self, builder: OutputBuilder) -> None:
        plan = self.scheduler.schedule()
        self.report.held_steps += self._hold.before_step(any(share.hit for share in plan.shares))
        self.cache.new_step_starts(plan)
        if plan.shares:
            next_tokens = self._compute_and_save(plan, builder)
            self.scheduler.update(plan, next_tokens)
        else:
            self._settle(builder)
        if self._on_step is not None:
            self._on_step(self.report)

    def _compute_and_save(self, plan: StepPlan, builder: OutputBuilder) -> dict[str, int]:
        self._batch.load(plan)
        outputs, next_tokens = self._forward(plan)
        count = plan.num_tokens
        step_id = self.cache.save_outputs(
            outputs.pop(self._live.keys[0].name),
            outputs,
            num_tokens_unpadded=count,
            num_tokens_padded=self._padded(count),
        )
        self._hold.after_save()
        self._hand_over(builder)
        self._saved = step_id, plan
        return next_tokens

    def _padded(self, count: int) -> int:
        return -(-count // self.settings.pad_to) * self.settings.pad_to

    def _settle(self, builder: OutputBuilder) -> None:
        """No step follows at once: nothing is held, and the last step is handed over."""
        self._hold.release()
        self._hand_over(builder)

    def _hand_over(self, builder: OutputBuilder) -> None:
        """Give the last saved step to the builder; a client that went away since wants no rows of it."""
        saved, self._saved = self._saved, None
        if saved is not None:
            step_id, plan = saved
            wanted = [share for share in plan.shares if not share.sequence.aborted]
            builder.put(SavedStep(step_id, wanted, self.scheduler.take_ended()))

    # ---------------------------------------------------------------- forward

    def _forward(self, plan: StepPlan) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """Run the model over a step: the live buffers, and each complete request's next token."""
        tokens = [token for share in plan.shares for token in share.sequence.tokens[share.start : share.stop]]
        positions = np.concatenate([np.arange(share.start, share.stop) for share in plan.shares])
        generations = np.concatenate([np.full(share.count, share.generation) for share in plan.shares])
        device = self.model.device
        spans = _spans(plan.shares, device)
        hidden = self.model.paged(
            torch.tensor(tokens, device=device), torch.from_numpy(positions).to(device), spans, self._kv
        )
        if self._trace is not None:
            self._trace.emit("overwrite_live", {}, {})
        values = output_values(self.model, hidden)
        outputs = self._live.overwrite(values, generations, positions, self._padded(plan.num_tokens))
        return outputs, self._sample(plan.shares, spans, hidden)

    def _sample(self, shares: list[Share], spans: list[Span], hidden: torch.Tensor) -> dict[str, int]:
        last = hidden[[span.stop - 1 for span in spans]]
        next_tokens = self.model.next_tokens(last)
        return {share.req_id: token for share, token in zip(shares, next_tokens, strict=True)}


def _spans(shares: list[Share], device: torch.device) -> list[Span]:
    spans, start = [], 0
    for share in shares:
        spans.append(Span(start, start + share.count, torch.from_numpy(share.slots).to(device)))
        start += share.count
    return spans
