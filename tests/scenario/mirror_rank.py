"""One rank of a sparse runner, as a process: run by `test_mirror_ranks`. Says how it ended, as one line of JSON.

mirror_rank.py RENDEZVOUS RANK SIZE ENGINE TIMEOUT_S DYING_RANK DYING_STEP BACKEND

With the backend nccl each rank has a GPU of its own, and reduces over all of them in each step, as layers would.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from palimpsest.host_mirror.ranks import LocalRanks
from palimpsest.runners.sparse import SparseRequest, SparseRunner, SparseSettings
from palimpsest.runners.sparse.model import IDENTITY
from palimpsest.trace import MemorySink
from palimpsest_model_check.replay.machine import replay


def requests() -> list[SparseRequest]:
    chance = random.Random(3)
    prompts = [tuple(chance.randrange(97) for _ in range(9 + 3 * number)) for number in range(4)]
    served = [
        SparseRequest(
            f"r{n}", tokens, 24 if n == 0 else 9, arrival=1 + n, imported=6 * (n == 2), preempted_at=(12,) * (n % 2)
        )
        for n, tokens in enumerate(prompts)
    ]
    return [*served, SparseRequest("fork", (*prompts[0], 1, 2), 6, arrival=5, forks=("r0", len(prompts[0])))]


def serve(rank: int, engine: str, timeout_s: float, dying: tuple[int, int], device: str) -> dict[str, Any]:
    def on_step(step: int) -> None:
        if (rank, step) == dying:
            os._exit(9)
        if device != "cpu" and dying[0] < 0:  # a collective with a rank that is gone has NCCL's bound, not the mirror's
            steps = torch.full((1,), float(step), device=device)
            dist.all_reduce(steps, op=dist.ReduceOp.MAX)
            assert steps.item() == step

    settings = SparseSettings(engine_id=engine, timeout_s=timeout_s, num_resident_blocks=8, device=device)
    sink = MemorySink(lambda _, rows: rows[:, -IDENTITY:].cpu().numpy().astype("int64"))
    runner = SparseRunner(requests(), settings, ranks=LocalRanks(timeout_s), on_step=on_step, trace=sink)
    began = time.monotonic()
    try:
        report = runner.run()
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - began}
    sink.close()
    replayed = replay(f"rank {rank}", sink.config, sink.events)
    counts, verdict = report.counts, report.verdict
    return {
        "faults": verdict.faults, "host_rows": verdict.host_rows, "gathered": verdict.gathered_rows,
        "preemptions": counts.preemptions, "imports": counts.imports, "forks": counts.forks,
        "restores": counts.restores, "rejected": counts.rejected, "steps": counts.steps,
        "replayed": "accepted" if replayed.ok else str(replayed),
    }  # fmt: skip


def main() -> None:
    rendezvous, rank, size, engine, timeout_s, dying_rank, dying_step, backend = sys.argv[1:]
    torch.set_num_threads(1)
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{rank}"
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(size), timeout=timedelta(seconds=60)
    )
    found = serve(int(rank), engine, float(timeout_s), (int(dying_rank), int(dying_step)), device)
    gc.collect()
    maps = Path("/proc/self/maps")
    found["still_mapped"] = engine in maps.read_text() if maps.exists() else False
    print(json.dumps(found), flush=True)
    os._exit(0)  # the process group of a lost rank cannot be taken down in order


if __name__ == "__main__":
    main()
