"""A whole run: the workloads that were asked for, then growth and tracing, and where it all was measured."""

from __future__ import annotations

import datetime
import platform
from argparse import Namespace
from collections.abc import Callable, Sequence

import torch

import palimpsest
from palimpsest.bench import growth
from palimpsest.bench.device import DEVICE_WORKLOADS, measure_steps
from palimpsest.bench.measure import measure
from palimpsest.bench.results import Report
from palimpsest.bench.workloads import WORKLOADS


def measure_all(options: Namespace, progress: Callable[[str], None]) -> Report:
    """Measure what the command's options ask for; `progress` hears the name of each part.

    Raises `ValueError` for a workload or a device that is not there, before anything is run.
    """
    device = torch.device(options.device)
    if device.type != "cpu" and not torch.accelerator.is_available():
        raise ValueError(f"there is no accelerator for --device {options.device}")
    names = select(options.workloads, list(WORKLOADS if device.type == "cpu" else DEVICE_WORKLOADS))
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(options.threads)
    try:
        report = describe(device, quick=options.quick)
        for name in names:
            progress(name)
            if name in WORKLOADS:
                report.workloads += measure(WORKLOADS[name], quick=options.quick, repeats=options.repeats)
            else:
                found, saves = measure_steps(
                    DEVICE_WORKLOADS[name], device, quick=options.quick, repeats=options.repeats
                )
                report.workloads.append(found)
                report.saves += [saves] if saves is not None else []
        if options.growth:
            progress("growth")
            report.growth = growth.growth(quick=options.quick, repeats=options.repeats)
        if options.tracing:
            progress("tracing")
            report.tracing = growth.tracing(quick=options.quick, repeats=options.repeats)
    finally:
        torch.set_num_threads(before)
    return report


def select(asked: Sequence[str], known: Sequence[str]) -> list[str]:
    """The workloads asked for, or all that are known. Raises `ValueError` naming one that is not."""
    unknown = [name for name in asked if name not in (*WORKLOADS, *DEVICE_WORKLOADS)]
    if unknown:
        raise ValueError(f"there is no workload {unknown[0]!r}; there are {', '.join((*WORKLOADS, *DEVICE_WORKLOADS))}")
    return list(dict.fromkeys(asked)) or list(known)


def describe(device: torch.device, *, quick: bool) -> Report:
    """An empty report of this day, device and software; nothing in it names the machine."""
    name = "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    versions = {"palimpsest": palimpsest.__version__, "torch": torch.__version__, "Python": platform.python_version()}
    return Report(datetime.date.today().isoformat(), name, torch.get_num_threads(), quick, versions)
