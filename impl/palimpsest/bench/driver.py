"""The cache under a clock: one step's three calls, each timed, and every delivered row checked."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from palimpsest.bench.rows import LiveBuffers, RowMaker
from palimpsest.bench.steps import Step, View
from palimpsest.prefix_cache import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig, PrefixCacheManager, StepOutputs
from palimpsest.runners.reference.hold import HoldableSync
from palimpsest.trace import Sink

now = time.perf_counter_ns

#: the bound of every wait, in seconds
PATIENT_S = 60.0


class Checked:
    """Counts of the rows that were delivered, and of those among them that were wrong."""

    def __init__(self, maker: RowMaker) -> None:
        self._maker = maker
        self.rows = self.wrong = 0

    def take(self, step: Step, delivered: Mapping[str, torch.Tensor]) -> None:
        """Check the rows of each key, request by request in one tensor."""
        for key in self._maker.layouts:
            columns = self._maker.columns(key, step.delivered)
            rows = delivered.get(key)
            self.rows += len(columns)
            self.wrong += len(columns) if rows is None else self._maker.wrong(key, columns, rows)

    def take_identities(self, step: Step, delivered: Mapping[str, torch.Tensor]) -> None:
        """Check only the identity columns of the rows of each key, which is all that `delivered` has."""
        for key in self._maker.layouts:
            columns = self._maker.columns(key, step.delivered)
            rows = delivered.get(key)
            self.rows += len(columns)
            if rows is None or rows.shape != columns.shape:
                self.wrong += len(columns)
            else:
                self.wrong += int((rows.view(columns.dtype) != columns).any(dim=1).sum())


def delivered_rows(step: Step, outputs: StepOutputs, width: int | None = None) -> dict[str, torch.Tensor]:
    """The rows of each delivered key, request by request in one tensor; of each the first `width` values, or all."""
    keys = dict(outputs.mm_outputs)
    if outputs.hidden_states is not None:
        keys[HIDDEN_KEY] = outputs.hidden_states
    return {key: torch.cat([rows[name][:, :width] for name in step.order]) for key, rows in keys.items()}


class Driver:
    """A cache and the runner's side of it. Each timed method gives nanoseconds."""

    def __init__(
        self,
        config: PrefixCacheConfig,
        policy: ModelCachePolicy,
        live: LiveBuffers,
        *,
        eager: bool | None = True,
        trace: Sink | None = None,
    ) -> None:
        self.view, self.live = View(config.block_size), live
        self.sync = HoldableSync(PATIENT_S)
        self.cache = PrefixCacheManager(config, self.view, eager=eager, sync=self.sync, trace=trace)
        self.cache.register_policy(policy)
        self._step_id = 0
        self._outputs: StepOutputs | None = None

    def start(self, step: Step) -> int:
        """`new_step_starts`."""
        self.view.step = step
        begun = now()
        self.cache.new_step_starts(step.schedule)
        return now() - begun

    def save(self, step: Step) -> int:
        """`save_outputs` of what is in the live buffers."""
        hidden = self.live.buffers.get(HIDDEN_KEY)
        others = {key: rows[: step.count] for key, rows in self.live.buffers.items() if key != HIDDEN_KEY}
        hidden = None if hidden is None else hidden[: step.count]
        begun = now()
        self._step_id = self.cache.save_outputs(
            hidden, others, num_tokens_unpadded=step.count, num_tokens_padded=step.count
        )
        return now() - begun

    @property
    def saved(self) -> int:
        """The id of the step saved last."""
        return self._step_id

    def deliver(self, step: Step, step_id: int | None = None) -> int:
        """`materialize` of the step saved last, or of the one named; `take` then gives what it delivered."""
        step_id = self._step_id if step_id is None else step_id
        begun = now()
        self._outputs = self.cache.materialize(step_id, step.order)
        return now() - begun

    def take(self, step: Step) -> dict[str, torch.Tensor]:
        """Copies of the rows delivered last; the outputs themselves are let go."""
        assert self._outputs is not None, "nothing was delivered"
        rows = delivered_rows(step, self._outputs)
        self._outputs = None
        return rows

    def close(self) -> None:
        """Check that nothing is held, and shut the cache down."""
        self.cache.check_invariants()
        self.cache.shutdown()
