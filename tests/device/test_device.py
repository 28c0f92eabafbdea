"""The threaded mode with real streams, pinned pages and live buffers that a graph overwrites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from palimpsest.prefix_cache.interface import ModelCachePolicy, PrefixCacheConfig
from palimpsest.prefix_cache.manager import PrefixCacheManager
from tests.support import View

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA accelerator"),
]

TESTS = Path(__file__).resolve().parents[1]
BLOCK, WIDTH = 16, 64


class Loop:
    """A runner whose forward is a captured graph that rewrites the same output buffers at each step."""

    def __init__(self, requests: int, dtype: torch.dtype, blocks_each: int = 8) -> None:
        self.view = View(block_size=BLOCK)
        self.requests, self.blocks_each = [f"r{i}" for i in range(requests)], blocks_each
        config = PrefixCacheConfig(num_blocks=requests * blocks_each, block_size=BLOCK, staging_capacity_tokens=4096)
        self.cache = PrefixCacheManager(config, self.view)
        self.cache.register_policy(ModelCachePolicy(deferred_keys=frozenset({"d"})))
        self.tags = torch.zeros(requests, 1, device="cuda", dtype=dtype)
        self.live = {key: torch.zeros(requests, WIDTH, device="cuda", dtype=dtype) for key in ("h", "k", "d")}
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for number, rows in enumerate(self.live.values()):
                rows.copy_((self.tags + number).expand_as(rows))

    def step(self, position: int, *, new: bool) -> int:
        bound = self.blocks_each * BLOCK
        blocks = [list(range(i * self.blocks_each, (i + 1) * self.blocks_each)) for i in range(len(self.requests))]
        at = position % bound
        self.view.order = list(self.requests)
        self.view.slots = torch.tensor([b[at // BLOCK] * BLOCK + at % BLOCK for b in blocks])
        self.cache.new_step_starts(
            SimpleNamespace(
                scheduled_new_reqs=[
                    SimpleNamespace(req_id=r, num_computed_tokens=0, block_ids=None) for r in self.requests
                ]
                if new
                else [],
                finished_req_ids=set(),
                num_scheduled_tokens=dict.fromkeys(self.requests, 1),
            )
        )
        count = len(self.requests)
        self.tags.copy_((torch.arange(count) % 64 + position % 64)[:, None])
        self.graph.replay()
        return self.cache.save_outputs(
            self.live["h"],
            {"k": self.live["k"], "d": self.live["d"]},
            num_tokens_unpadded=count,
            num_tokens_padded=count,
        )

    def wrong(self, step: int, position: int) -> int:
        outputs = self.cache.materialize(step, self.requests)
        assert outputs.hidden_states is not None
        faults = 0
        for number, rows in enumerate((outputs.hidden_states, outputs.mm_outputs["k"], outputs.mm_outputs["d"])):
            for index, request in enumerate(self.requests):
                want = float(index % 64 + position % 64 + number)
                faults += not bool((rows[request] == want).all())
        return faults


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graph_replayed_buffers_are_frozen_at_save_and_delivered_right_a_step_behind(dtype):
    loop = Loop(64, dtype)
    last = loop.step(0, new=True)
    for position in range(1, 200):
        step = loop.step(position, new=False)
        assert loop.wrong(last, position - 1) == 0
        last = step
    assert loop.wrong(last, 199) == 0
    loop.cache.check_invariants()
    loop.cache.shutdown()


def test_two_caches_at_once_do_not_disturb_each_other():
    loops = [Loop(16, torch.bfloat16), Loop(16, torch.bfloat16)]
    steps = [loop.step(0, new=True) for loop in loops]
    for position in range(1, 100):
        after = [loop.step(position, new=False) for loop in loops]
        assert [loop.wrong(step, position - 1) for loop, step in zip(loops, steps, strict=True)] == [0, 0]
        steps = after
    for loop, step in zip(loops, steps, strict=True):
        loop.cache.discard_step(step)
        loop.cache.shutdown()


def test_the_memory_of_10000_steps_is_flat():
    loop = Loop(16, torch.bfloat16, blocks_each=2)
    loop.cache.materialize(loop.step(0, new=True), loop.requests)
    marks = []
    for position in range(1, 10_001):
        loop.cache.materialize(loop.step(position, new=False), loop.requests)
        if position % 2500 == 0:
            torch.cuda.synchronize()
            marks.append(torch.cuda.memory_allocated())
    # deferred clones stay until the budget flushes; nothing else grows
    budget = loop.cache.config.gpu_staging_bytes
    assert max(marks) - min(marks) <= budget
    assert len(loop.cache._controller._tasks) <= 2 * len(loop.requests)
    loop.cache.shutdown()


def test_the_properties_hold_with_live_buffers_on_the_accelerator():
    environment = {**os.environ, "PALIMPSEST_TEST_DEVICE": "cuda"}
    properties = [str(TESTS / "property"), str(TESTS / "operator/test_row_checks.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-k", "threaded or not eager", *properties]
    done = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
