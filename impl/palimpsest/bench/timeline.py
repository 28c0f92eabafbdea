"""How long `save_outputs` keeps the engine thread, and how fast rows land, on the profiler's one clock.

A save may have to wait for the device: until the step before has landed, its writes cannot be done. What it takes
after the last landing that it saw, or after its own begin where that is later, is the cache's own.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from palimpsest.bench.results import SaveCost

SAVE, ALONE = "save_outputs", "pinned copies, alone"
_COPY_OUT = "Memcpy DtoH (Device -> Pinned)"
_ALONE_TIMES = 8

Events = list[dict[str, Any]]


def measure_saves(workload: str, run: Callable[[], object], device: torch.device, nbytes: int) -> SaveCost:
    """Profile `run`, which marks its saves with `SAVE`, and then copies of `nbytes` to pinned memory, alone."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.accelerator.synchronize(device)
        with record_function(ALONE):
            for _ in range(_ALONE_TIMES):
                target.copy_(source, non_blocking=True)
            torch.accelerator.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        profiler.export_chrome_trace(str(path))
        return save_cost(workload, json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def save_cost(workload: str, events: Events) -> SaveCost:
    """What a timeline in the Chrome format says of its saves; one with no save or no copy raises `ValueError`."""
    (alone,) = _named(events, "user_annotation", ALONE)
    copies = _named(events, "gpu_memcpy", _COPY_OUT)
    of_steps = [copy for copy in copies if copy["ts"] < alone["ts"]]
    saves = _named(events, "user_annotation", SAVE)
    if not saves or not of_steps:
        raise ValueError(f"a timeline with {len(saves)} saves and {len(of_steps)} copies of steps")
    own = [_own_time(save, of_steps) for save in saves]
    return SaveCost(
        workload,
        len(saves),
        statistics.median(own),
        max(own),
        _rate(of_steps),
        max(_rate([copy]) for copy in copies if copy["ts"] >= alone["ts"]),
    )


def _own_time(save: dict[str, Any], copies: Events) -> float:
    end = _end(save)
    landed = [_end(copy) for copy in copies if _end(copy) <= end]
    return float(end - max([save["ts"], *landed]))


def _named(events: Iterable[dict[str, Any]], category: str, name: str) -> Events:
    return [event for event in events if event.get("cat") == category and event["name"] == name]


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def _rate(copies: Events) -> float:
    """Bytes per second of copies of a kind, each of the size of the largest at least by half."""
    most = max(copy["args"]["bytes"] for copy in copies)
    large = [copy for copy in copies if 2 * copy["args"]["bytes"] >= most]
    return float(1e6 * sum(copy["args"]["bytes"] for copy in large) / sum(copy["dur"] for copy in large))
