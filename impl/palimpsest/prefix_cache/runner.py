"""The mixin that gives a real runner its prefix cache, built once from the engine's configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from palimpsest.prefix_cache.group_view import FullAttentionGroupView, stage_prefix_cache_config
from palimpsest.prefix_cache.interface import ModelCachePolicy
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs


class SavedStep:
    """A saved step that is consumed exactly once, at the latest when its `with` block ends."""

    def __init__(self, manager: PrefixCacheManager, step_id: int) -> None:
        self._manager, self.step_id, self.consumed = manager, step_id, False

    def materialize(self, req_ids: Collection[str]) -> StepOutputs:
        """The step's outputs for `req_ids`; errors as in `PrefixCacheManager.materialize`."""
        outputs = self._manager.materialize(self.step_id, req_ids)
        self.consumed = True
        return outputs


class PrefixCacheRunnerMixin:
    """What a runner inherits: `init_prefix_cache` at start-up, `prefix_cache_step` to consume a step."""

    prefix_cache: PrefixCacheManager | None = None

    def init_prefix_cache(
        self,
        *,
        input_batch: Any,
        model: Any,
        kv_cache_config: Any,
        vllm_config: Any,
        is_last_rank: bool,
        is_pooling_model: bool = False,
        eager: bool | None = None,
    ) -> PrefixCacheManager | None:
        """The runner's prefix cache, made on the first call; None where this stage has none.

        Only the last pipeline rank has the model's outputs, so only it has a cache. Raises
        `ConfigRefusedError` for a configuration that would be served wrongly.
        """
        if self.prefix_cache is not None or not is_last_rank:
            return self.prefix_cache
        config = stage_prefix_cache_config(
            kv_cache_config=kv_cache_config,
            cache_config=vllm_config.cache_config,
            kv_transfer_config=vllm_config.kv_transfer_config,
            scheduler_config=vllm_config.scheduler_config,
            model_config=vllm_config.model_config,
            is_pooling_model=is_pooling_model,
            speculative_config=vllm_config.speculative_config,
        )
        if config is not None:
            view = FullAttentionGroupView(input_batch, block_size=config.block_size)
            self.prefix_cache = PrefixCacheManager(config, view, eager)
            self.prefix_cache.register_policy(ModelCachePolicy.from_model(model))
        return self.prefix_cache

    @contextmanager
    def prefix_cache_step(self, step_id: int) -> Iterator[SavedStep]:
        """A saved step for one `with` block; it is discarded if the block does not materialize it."""
        if self.prefix_cache is None:
            raise RuntimeError("this runner has no prefix cache: init_prefix_cache gave None")
        step = SavedStep(self.prefix_cache, step_id)
        try:
            yield step
        finally:
            if not step.consumed and step_id in self.prefix_cache.unconsumed_steps():
                self.prefix_cache.discard_step(step_id)

    def shutdown_prefix_cache(self) -> None:
        """Shut the cache down, if there is one; idempotent."""
        if self.prefix_cache is not None:
            self.prefix_cache.shutdown()
            self.prefix_cache = None


OmniPrefixCacheRunnerMixin = PrefixCacheRunnerMixin
