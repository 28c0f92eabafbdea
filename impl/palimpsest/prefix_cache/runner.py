"""The prefix cache inside a real model runner, as a mixin; the engine is imported only when it is asked.

    class MyRunner(PrefixCacheRunnerMixin, GPUModelRunner):
        def initialize_kv_cache(self, kv_cache_config):
            super().initialize_kv_cache(kv_cache_config)
            self.init_prefix_cache(kv_cache_config)

        def execute_model(self, scheduler_output):
            self.begin_prefix_cache_step(scheduler_output)  # after the batch has taken the output in
            ...                                             # forward
            step_id = self.save_prefix_cache_step(hidden, mm, num_tokens_unpadded=n, num_tokens_padded=padded)

        def build_output(self, step_id, req_ids):           # any thread
            with self.prefix_cache_step(step_id) as step:
                outputs = step.materialize(req_ids)         # None where the cache is off

Where the cache is off, every method does nothing and gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from palimpsest.errors import ConfigRefusedError, ShutdownError, StepConsumedError
from palimpsest.prefix_cache.group_view import FullAttentionGroupView, stage_prefix_cache_config
from palimpsest.prefix_cache.interface import ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.merge import StepOutputs
from palimpsest.prefix_cache.settings import read_settings
from palimpsest.trace import Sink


class SavedStep:
    """A saved step inside `prefix_cache_step`; leaving that without `materialize` discards it."""

    def __init__(self, manager: PrefixCacheManager | None, step_id: int | None) -> None:
        self._manager, self.step_id = manager, step_id
        self._consumed = self._tried = False

    def materialize(self, req_ids: Collection[str]) -> StepOutputs | None:
        """The outputs of the step for `req_ids`; None where the cache is off. Raises what
        `PrefixCacheManager.materialize` raises."""
        if self._manager is None or self.step_id is None:
            return None
        self._tried = True
        outputs = self._manager.materialize(self.step_id, req_ids)
        self._consumed = True
        return outputs

    def close(self) -> None:
        """Discard the step unless it was consumed. After shutdown there is nothing left to discard."""
        if self._manager is None or self.step_id is None or self._consumed:
            return
        # A materialize that raised has consumed the step, or not; only a first consumer must find it there.
        expected = (ShutdownError, StepConsumedError) if self._tried else (ShutdownError,)
        with suppress(*expected):
            self._manager.discard_step(self.step_id)


class PrefixCacheRunnerMixin:
    """Gives a runner a prefix cache that is built once and whose steps are consumed exactly once.

    The runner has vLLM's attributes: `cache_config`, `scheduler_config`, `model_config`,
    `speculative_config`, `vllm_config.kv_transfer_config`, `input_batch`, `is_pooling_model`, `get_model()`.
    """

    cache_config: Any
    scheduler_config: Any
    model_config: Any
    speculative_config: Any
    vllm_config: Any
    input_batch: Any
    is_pooling_model: bool
    get_model: Callable[[], Any]

    #: None where the cache is off
    prefix_cache: PrefixCacheManager | None = None

    def init_prefix_cache(
        self, kv_cache_config: Any, *, eager: bool | None = None, trace: Sink | None = None
    ) -> PrefixCacheManager | None:
        """Build the cache from the engine's configuration, once the KV cache is there; a later call gives the
        same one. None, and off, on every pipeline rank but the last, and where the stage has no use for it. Fields
        that `additional_config["palimpsest"]` or the environment sets are taken over (`settings`). The model's policy
        is read once, here.

        Raises `ConfigRefusedError` for an engine that it cannot serve, or for a second call with another
        configuration, and `HostMemoryError` when the host has too little memory.
        """
        if not self.is_last_pipeline_rank():
            return None
        config = stage_prefix_cache_config(
            kv_cache_config=kv_cache_config,
            cache_config=self.cache_config,
            kv_transfer_config=self.vllm_config.kv_transfer_config,
            scheduler_config=self.scheduler_config,
            model_config=self.model_config,
            is_pooling_model=self.is_pooling_model,
            speculative_config=self.speculative_config,
            settings=read_settings(self.vllm_config),
        )
        if self.prefix_cache is not None:
            return _same(self.prefix_cache, config)
        if config is not None:
            self.prefix_cache = self._build_prefix_cache(config, eager, trace)
        return self.prefix_cache

    def _build_prefix_cache(
        self, config: PrefixCacheConfig, eager: bool | None, trace: Sink | None
    ) -> PrefixCacheManager:
        view = FullAttentionGroupView(self.input_batch, block_size=config.block_size)
        policy = ModelCachePolicy.from_model(self.get_model())
        manager = PrefixCacheManager(config, view, eager, trace=trace)
        manager.register_policy(policy)
        return manager

    def is_last_pipeline_rank(self) -> bool:
        """Whether this rank computes the model's outputs. Asks vLLM; a runner without it overrides this."""
        from vllm.distributed import get_pp_group  # noqa: PLC0415  # nothing imports the engine at module scope

        return bool(get_pp_group().is_last_rank)

    def begin_prefix_cache_step(self, scheduler_output: Any) -> None:
        """Begin a step: `PrefixCacheManager.new_step_starts`."""
        if self.prefix_cache is not None:
            self.prefix_cache.new_step_starts(scheduler_output)

    def save_prefix_cache_step(
        self,
        hidden_states: torch.Tensor | None,
        multimodal_outputs: Mapping[str, Any] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
    ) -> int | None:
        """Save the step's outputs: `PrefixCacheManager.save_outputs`. The id is for `prefix_cache_step`."""
        if self.prefix_cache is None:
            return None
        return self.prefix_cache.save_outputs(
            hidden_states,
            multimodal_outputs,
            num_tokens_unpadded=num_tokens_unpadded,
            num_tokens_padded=num_tokens_padded,
        )

    @contextmanager
    def prefix_cache_step(self, step_id: int | None) -> Iterator[SavedStep]:
        """A saved step, to be materialized at most once; however the block is left, the step is consumed."""
        step = SavedStep(self.prefix_cache, step_id)
        try:
            yield step
        finally:
            step.close()

    def shutdown_prefix_cache(self) -> None:
        """Shut the cache down, within its bound; idempotent."""
        if self.prefix_cache is not None:
            self.prefix_cache.shutdown()


def _same(manager: PrefixCacheManager, config: PrefixCacheConfig | None) -> PrefixCacheManager:
    if manager.config != config:
        raise ConfigRefusedError(f"the prefix cache was built for {manager.config}, not for {config}")
    return manager


OmniPrefixCacheRunnerMixin = PrefixCacheRunnerMixin
