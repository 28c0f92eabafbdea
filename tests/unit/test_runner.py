"""The mixin in a runner that has an engine's attributes: built once, every step consumed exactly once."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from palimpsest.compat import vllm_omni
from palimpsest.errors import BadStepError, ConfigRefusedError, StepConsumedError
from palimpsest.prefix_cache import manager as manager_module
from palimpsest.prefix_cache.interface import HIDDEN_KEY
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.runner import OmniPrefixCacheRunnerMixin, PrefixCacheRunnerMixin

SIZE, WIDTH = 4, 3


class FullAttentionSpec:
    """Stands for the engine's class, which is told by its name."""


class Model:
    requires_full_prefix_cached_hidden_states = True
    deferred_prefix_cache_mm_keys = ("codes",)


class Tables(list):
    pass


class Runner(PrefixCacheRunnerMixin):
    """A runner of one request on blocks 2 and 5."""

    last = True

    def __init__(self, *, enabled=True, draft=None):
        self.cache_config = SimpleNamespace(enable_prefix_caching=enabled, block_size=SIZE)
        self.scheduler_config = SimpleNamespace(max_num_batched_tokens=16, max_model_len=32)
        self.vllm_config = SimpleNamespace(kv_transfer_config=None)
        self.model_config, self.speculative_config, self.is_pooling_model = None, draft, False
        table = SimpleNamespace(block_table=SimpleNamespace(cpu=torch.tensor([[2, 5]], dtype=torch.int32)))
        self.input_batch = SimpleNamespace(
            req_ids=["a"],
            req_id_to_index={"a": 0},
            num_computed_tokens_cpu=torch.tensor([0]),
            block_table=Tables([table]),
        )
        self.kv_cache_config = SimpleNamespace(
            num_blocks=8, kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec())]
        )

    def is_last_pipeline_rank(self):
        return self.last

    def get_model(self):
        return Model()

    def save_step(self, fill, count=4):
        """One step of request a, all of whose rows have the value `fill`."""
        self.begin_prefix_cache_step(
            SimpleNamespace(
                scheduled_new_reqs=[SimpleNamespace(req_id="a", num_computed_tokens=0, block_ids=[[2, 5]])],
                finished_req_ids=set(),
                num_scheduled_tokens={"a": count},
            )
        )
        return self.save_prefix_cache_step(
            torch.full((count, WIDTH), fill), {}, num_tokens_unpadded=count, num_tokens_padded=count
        )


@pytest.fixture
def runner():
    made = Runner()
    made.init_prefix_cache(made.kv_cache_config, eager=True)
    yield made
    made.prefix_cache.check_invariants()
    assert made.prefix_cache.unconsumed_steps() == []
    made.shutdown_prefix_cache()


def test_the_cache_is_built_from_the_engines_configuration(runner):
    cache = runner.prefix_cache
    assert isinstance(cache, PrefixCacheManager)
    assert (cache.config.num_blocks, cache.config.block_size) == (8, SIZE)
    assert cache.config.staging_capacity_tokens == 16
    assert cache._policy.deferred_keys == {"codes"}
    assert cache._policy.hidden_key == HIDDEN_KEY


def test_the_cache_is_built_once(runner):
    first = runner.prefix_cache
    assert runner.init_prefix_cache(runner.kv_cache_config) is first
    runner.kv_cache_config.num_blocks = 9
    with pytest.raises(ConfigRefusedError, match="was built for"):
        runner.init_prefix_cache(runner.kv_cache_config)
    assert runner.prefix_cache is first


def test_a_materialized_step_is_consumed(runner):
    step_id = runner.save_step(1.5)
    with runner.prefix_cache_step(step_id) as step:
        outputs = step.materialize(["a"])
    assert outputs.hidden_states["a"].eq(1.5).all()
    with pytest.raises(StepConsumedError):
        runner.prefix_cache.discard_step(step_id)


def test_a_step_left_without_materialize_is_discarded(runner):
    with runner.prefix_cache_step(runner.save_step(1.0)):
        pass


def test_a_step_left_by_an_error_is_discarded_and_the_error_is_kept(runner):
    with pytest.raises(ZeroDivisionError), runner.prefix_cache_step(runner.save_step(1.0)):
        raise ZeroDivisionError


def test_a_materialize_that_refuses_its_requests_discards_the_step(runner):
    with pytest.raises(BadStepError), runner.prefix_cache_step(runner.save_step(1.0)) as step:
        step.materialize(["nobody"])


def test_a_second_materialize_raises(runner):
    with runner.prefix_cache_step(runner.save_step(1.0)) as step:
        step.materialize(["a"])
        with pytest.raises(StepConsumedError):
            step.materialize(["a"])


def test_a_step_that_another_has_consumed_is_not_passed_over(runner):
    step_id = runner.save_step(1.0)
    runner.prefix_cache.discard_step(step_id)
    with pytest.raises(StepConsumedError), runner.prefix_cache_step(step_id):
        pass


def test_a_shutdown_inside_the_block_leaves_nothing_to_discard(runner):
    with runner.prefix_cache_step(runner.save_step(1.0)):
        runner.shutdown_prefix_cache()
    runner.shutdown_prefix_cache()


@pytest.mark.parametrize("why", ["disabled", "not the last rank"])
def test_where_the_cache_is_off_every_method_does_nothing(why):
    off = Runner(enabled=why != "disabled")
    off.last = why != "not the last rank"
    assert off.init_prefix_cache(off.kv_cache_config) is None
    assert off.save_step(1.0) is None
    with off.prefix_cache_step(None) as step:
        assert step.materialize(["a"]) is None
    off.shutdown_prefix_cache()


def test_an_engine_that_cannot_be_served_is_refused():
    unfit = Runner(draft=object())
    with pytest.raises(ConfigRefusedError, match="speculative decoding"):
        unfit.init_prefix_cache(unfit.kv_cache_config)
    assert unfit.prefix_cache is None


def test_a_rank_before_the_last_refuses_nothing():
    unfit = Runner(draft=object())
    unfit.last = False
    assert unfit.init_prefix_cache(unfit.kv_cache_config) is None


@pytest.mark.parametrize("last", [True, False])
def test_the_rank_is_asked_of_the_engine(monkeypatch, last):
    engine = ModuleType("vllm.distributed")
    engine.get_pp_group = lambda: SimpleNamespace(is_last_rank=last)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", engine)
    assert PrefixCacheRunnerMixin().is_last_pipeline_rank() is last


def test_upstream_names_are_these_classes():
    assert OmniPrefixCacheRunnerMixin is PrefixCacheRunnerMixin
    assert vllm_omni.OmniPrefixCacheManager is manager_module.PrefixCacheManager
    assert all(hasattr(vllm_omni, name) for name in vllm_omni.__all__)


def test_what_an_operator_sets_is_taken_over(monkeypatch):
    made = Runner()
    made.vllm_config.additional_config = {"palimpsest": {"staging_depth": 3}}
    monkeypatch.setenv("PALIMPSEST_CACHE_STAGING_CLAIM_TIMEOUT_S", "7.5")
    cache = made.init_prefix_cache(made.kv_cache_config, eager=True)
    assert (cache.config.staging_depth, cache.config.staging_claim_timeout_s) == (3, 7.5)
    made.shutdown_prefix_cache()


def test_the_policy_is_read_once(monkeypatch, runner):
    monkeypatch.setattr(Model, "deferred_prefix_cache_mm_keys", ())
    assert runner.prefix_cache._policy.deferred_keys == {"codes"}
