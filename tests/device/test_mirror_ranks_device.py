"""Ranks with a GPU each, through NCCL, on one shared pool that each of them registers and one writes."""

from __future__ import annotations

import pytest
import torch

from tests.scenario.test_mirror_ranks import BOUND_S, run_ranks

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA accelerators"),
]


def test_every_rank_sees_every_row_that_one_of_them_writes(tmp_path):
    said = run_ranks(tmp_path, 2, backend="nccl")
    assert [answer.get("faults") for answer in said] == [[], []], said
    assert said[0] == said[1], "the ranks did not do the same"
    assert said[0]["host_rows"] > 100
    assert not said[0]["still_mapped"]


def test_a_rank_that_dies_leaves_the_other_with_a_named_error_and_no_mapping(tmp_path):
    said = run_ranks(tmp_path, 2, timeout_s=BOUND_S, dying=(1, 6), backend="nccl")
    assert said[1] is None
    assert said[0]["error"] == "RankLostError", said[0]
    assert "rank 0 of 2" in said[0]["message"]
    assert not said[0]["still_mapped"]
