"""The recipes of docs/runners.md, run as they stand there: on stand-ins for the engines, and for one's own whole."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from palimpsest.errors import StepConsumedError
from tests.support import Background

PAGE = (Path(__file__).parents[2] / "docs/runners.md").read_text()
SIZE, WIDTH = 4, 3


def recipe(name: str) -> str:
    """The code behind a recipe's mark."""
    found = re.search(rf"<!-- recipe: {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found, name
    return found[1]


#: what `new_step_starts` reads of the engine's plan
PLAN_FIELDS = {
    "SchedulerOutput": {"scheduled_new_reqs", "num_scheduled_tokens", "finished_req_ids", "preempted_req_ids"},
    "NewRequestData": {"req_id", "num_computed_tokens", "block_ids"},
}


class FullAttentionSpec:
    """Stands for the engine's class, which is told by its name."""


class Tables(list):
    pass


class EngineRunner:
    """Stands for vLLM's runner: its attributes, and the methods that the recipes extend."""

    def __init__(self) -> None:
        self.cache_config = SimpleNamespace(enable_prefix_caching=True, block_size=SIZE)
        self.scheduler_config = SimpleNamespace(max_num_batched_tokens=16, max_model_len=32)
        self.vllm_config = SimpleNamespace(kv_transfer_config=None, additional_config={})
        self.model_config = self.speculative_config = None
        self.is_pooling_model = False
        table = SimpleNamespace(block_table=SimpleNamespace(cpu=torch.tensor([[2, 5]], dtype=torch.int32)))
        self.input_batch = SimpleNamespace(
            req_ids=[], req_id_to_index={}, num_computed_tokens_cpu=torch.tensor([0]), block_table=Tables([table])
        )
        self.initialized: list[tuple[Any, ...]] = []

    def initialize_kv_cache(self, kv_cache_config: Any, *args: Any) -> None:
        self.initialized.append((kv_cache_config, *args))

    def _update_states(self, scheduler_output: Any) -> str:
        self.input_batch.req_ids = list(scheduler_output.num_scheduled_tokens)
        self.input_batch.req_id_to_index = dict.fromkeys(self.input_batch.req_ids, 0)
        return "updated"

    def get_model(self) -> Any:
        return SimpleNamespace(deferred_prefix_cache_mm_keys=("codes",))


@pytest.fixture
def engine(monkeypatch):
    """Makes a recipe's class on stand-ins, of the rank that is asked for."""

    def module(name: str, **names: Any) -> None:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            if ".".join(parts[:end]) not in sys.modules:
                monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        for each, value in names.items():
            setattr(sys.modules[name], each, value)

    def make(name: str, *, last: bool = True) -> Any:
        module("vllm.v1.worker.gpu_model_runner", GPUModelRunner=EngineRunner)
        module("vllm_ascend.worker.model_runner_v1", NPUModelRunner=EngineRunner)
        module("vllm.distributed", get_pp_group=lambda: SimpleNamespace(is_last_rank=last))
        module("torch_npu")
        names: dict[str, Any] = {}
        exec(recipe(name), names)
        return names[f"Omni{name.upper()}ModelRunner"]()

    return make


KV_CACHE = SimpleNamespace(num_blocks=8, kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec())])


def schedule(**tokens: int) -> Any:
    new = [SimpleNamespace(req_id=name, num_computed_tokens=0, block_ids=[[2, 5]]) for name in tokens]
    return SimpleNamespace(scheduled_new_reqs=new, finished_req_ids=set(), num_scheduled_tokens=dict(tokens))


@pytest.mark.parametrize("name", ["gpu", "npu"])
def test_the_engine_recipes_serve_a_step_on_the_last_rank(engine, name):
    runner = engine(name)
    runner.initialize_kv_cache(KV_CACHE, "more")
    assert runner.initialized == [(KV_CACHE, "more")]
    first = runner.prefix_cache
    runner.initialize_kv_cache(KV_CACHE)
    assert runner.prefix_cache is first
    assert first._policy.deferred_keys == {"codes"}
    assert runner._update_states(schedule(a=4)) == "updated"
    saved = runner.save_prefix_cache_step(torch.full((4, WIDTH), 2.0), {}, num_tokens_unpadded=4, num_tokens_padded=4)
    with runner.prefix_cache_step(saved) as step:
        assert step.materialize(["a"]).hidden_states["a"].eq(2.0).all()
    first.check_invariants()
    runner.shutdown_prefix_cache()


def test_the_gpu_recipe_builds_outputs_on_another_thread_and_consumes_each_step_once(engine):
    runner = engine("gpu")
    runner.initialize_kv_cache(KV_CACHE)
    runner._update_states(schedule(a=4))
    saved = runner.save_step(torch.full((4, WIDTH), 2.0), {}, 4, 4)
    outputs = Background(lambda: runner.build_outputs(saved, ["a"]), "builder").result()
    assert outputs.hidden_states["a"].eq(2.0).all()
    with pytest.raises(StepConsumedError):
        runner.build_outputs(saved, ["a"])
    assert runner.prefix_cache.unconsumed_steps() == []
    runner.shutdown()
    assert "palimpsest-committer" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("name", ["gpu", "npu"])
def test_a_rank_before_the_last_has_no_cache_and_its_steps_do_nothing(engine, name):
    runner = engine(name, last=False)
    runner.initialize_kv_cache(KV_CACHE)
    assert runner.prefix_cache is None
    assert runner._update_states(schedule(a=4)) == "updated"


def test_a_runner_of_ones_own_is_thirty_lines_and_delivers_prefixes():
    code = recipe("own")
    body = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(body) <= 30
    names: dict[str, Any] = {}
    exec(code, names)
    rows = torch.arange(40, dtype=torch.float32)[:, None].repeat(1, WIDTH)

    def model(schedule: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return rows[:32].clone() if "a" in schedule.num_scheduled_tokens else rows[32:35].clone(), {}

    runner = names["Runner"](model, num_blocks=4)

    def step(name: str, hit: int, tokens: int, blocks: list[int], finished: set[str]) -> torch.Tensor:
        new = [SimpleNamespace(req_id=name, num_computed_tokens=hit, block_ids=[blocks])]
        output = SimpleNamespace(scheduled_new_reqs=new, finished_req_ids=finished, num_scheduled_tokens={name: tokens})
        return runner.step(output, {name: (blocks, hit)}).hidden_states[name]

    step("a", 0, 32, [0, 1], set())
    merged = step("b", 32, 3, [0, 1, 2], {"a"})
    assert torch.equal(merged, rows[:35])
    runner.cache.check_invariants()
    runner.cache.shutdown()


def test_importing_the_runners_imports_no_engine():
    code = "import sys, palimpsest.runners, palimpsest.compat.vllm_omni; print([m for m in sys.modules if 'vllm' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['palimpsest.compat.vllm_omni']"


def test_the_engines_own_plan_has_every_field_that_a_step_is_read_from():
    plan = pytest.importorskip("vllm.v1.core.sched.output", reason="the engine is not installed here")
    of = {name: {each.name for each in dataclasses.fields(getattr(plan, name))} for name in PLAN_FIELDS}
    assert not {(name, field) for name, fields in PLAN_FIELDS.items() for field in fields - of[name]}
