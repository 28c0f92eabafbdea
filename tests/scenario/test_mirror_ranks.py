"""Ranks as processes of this node: one shared pool, one writer; and a rank that dies in the middle of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from palimpsest.host_mirror.region import _path_of

RANK = Path(__file__).with_name("mirror_rank.py")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")]

BOUND_S = 5.0


def run_ranks(
    tmp_path: Path, size: int, *, timeout_s: float = 60.0, dying: tuple[int, int] = (-1, -1), backend: str = "gloo"
) -> list[Any]:
    """What each rank said at its end; None for one that said nothing."""
    engine = f"test-{os.getpid()}-{size}-{dying[0]}"
    paths = [str(ROOT / "impl"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    started = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(tmp_path / "meet"), str(rank), str(size), engine, str(timeout_s)]
            + [*map(str, dying), backend],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        ended = [process.communicate(timeout=110) for process in started]
    finally:
        for process in started:
            process.kill()
    assert not _path_of(engine).exists()
    said = [json.loads(out.splitlines()[-1]) if out.strip() else None for out, _ in ended]
    for rank, (answer, (_, errors)) in enumerate(zip(said, ended, strict=True)):
        assert answer is not None or rank == dying[0], errors[-2000:]
    return said


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_sees_every_row_that_one_of_them_writes(tmp_path, size):
    said = run_ranks(tmp_path, size)
    assert [answer.get("faults") for answer in said] == [[]] * size, said
    assert [answer["replayed"] for answer in said] == ["accepted"] * size
    assert all(answer == said[0] for answer in said), "the ranks did not do the same"
    first = said[0]
    assert min(first["preemptions"], first["imports"], first["forks"], first["restores"], first["rejected"]) > 0
    assert first["host_rows"] > 100
    assert not first["still_mapped"]


@pytest.mark.parametrize("dying_rank", [0, 1], ids=["the writer dies", "a reader dies"])
def test_a_rank_that_dies_in_a_step_leaves_the_others_an_error_and_no_memory(tmp_path, dying_rank):
    said = run_ranks(tmp_path, 2, timeout_s=BOUND_S, dying=(dying_rank, 6))
    assert said[dying_rank] is None
    left = said[1 - dying_rank]
    assert left["error"] == "RankLostError", left
    assert f"rank {1 - dying_rank} of 2" in left["message"]
    assert not left["still_mapped"]
