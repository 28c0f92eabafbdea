"""The measured part of docs/performance.md, made from the runs that are saved beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from palimpsest.bench.plot import svg
from palimpsest.bench.results import SAVE_GOAL_US, GrowthPoint, Measured, Report, SaveCost, TracingCost

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
#: the folder of saved runs, beside the document
RUNS = "measured"


def update(document: Path) -> list[Path]:
    """Write the tables of all runs in `measured/*.json` between the document's markers, and a plot for each run
    beside it; gives the files written.

    Raises `ValueError` where a marker or any run is missing; then nothing is written.
    """
    text = document.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no part between {BEGIN} and {END}")
    files = sorted((document.parent / RUNS).glob("*.json"))
    if not files:
        raise ValueError(f"there is no run in {document.parent / RUNS}: save one there with --json")
    runs = {file: Report.load(file) for file in files}
    plots = {file.with_suffix(".svg"): plot(run) for file, run in runs.items() if run.workloads}
    section = "\n".join(line for file, run in runs.items() for line in _section(file, run))
    document.write_text(f"{head}{BEGIN}\n{section}\n{END}{tail}", encoding="utf-8")
    for file, drawn in plots.items():
        file.write_text(drawn, encoding="utf-8")
    return [document, *plots]


def plot(run: Report) -> str:
    """The plot of a run's workloads."""
    return svg(f"time of a step, as a multiple of its copies alone ({run.device}, {run.date})", run.workloads)


def _section(file: Path, run: Report) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield f"\n### {run.device}, {run.threads} threads, {run.date}\n"
    yield f"{versions}; `{RUNS}/{file.name}`{'; quick sizes, not to be quoted' if run.quick else ''}.\n"
    if run.workloads:
        yield from workload_lines(run.workloads)
        yield f"\n![each workload's time as a multiple of its copies]({RUNS}/{file.stem}.svg)\n"
    if run.growth:
        yield from growth_lines(run.growth)
    if run.tracing:
        yield from tracing_lines(run.tracing)
    if run.saves:
        yield from save_lines(run.saves)


def workload_lines(measured: Iterable[Measured]) -> Iterator[str]:
    """The workloads as a table."""
    yield "| workload | p50, µs | floor, µs | x floor | over repeats | goal | met |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for each in measured:
        ratios = [repeat.p50_us / repeat.floor_p50_us for repeat in each.repeats]
        yield (
            f"| {each.workload}: {each.title} | {each.p50_us:,.0f} | {each.floor_p50_us:,.0f} | {each.ratio:.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} | {each.goal:g} | {'yes' if each.met else 'no'} |"
        )


def growth_lines(points: Iterable[GrowthPoint]) -> Iterator[str]:
    """The growth of a decode step as a table."""
    yield "| what grows | slots | live requests | in the step | p50, µs | floor, µs | beyond it, µs per live request |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for each in points:
        yield (
            f"| {each.sweep} | {each.slots:,} | {each.live:,} | {each.requests:,} | {each.p50_us:,.0f} "
            f"| {each.floor_p50_us:,.0f} | {each.us_per_live_request:.2f} |"
        )
    yield ""


def tracing_lines(costs: Iterable[TracingCost]) -> Iterator[str]:
    """What tracing adds as a table."""
    yield "| tracing | added to a step, µs | of a step of 6 ms, % | goal, % |"
    yield "| --- | ---: | ---: | ---: |"
    for each in costs:
        goal = f"{each.goal_percent:g}" if each.goal_percent else "noise"
        yield f"| {each.sink} | {each.p50_us - each.off_p50_us:+,.0f} | {each.percent:.1f} | {goal} |"


def save_lines(costs: Iterable[SaveCost]) -> Iterator[str]:
    """How long saves keep the engine thread as a table."""
    yield (
        f"| `save_outputs` beyond the device's work | p50, µs (goal {SAVE_GOAL_US}) | most, µs | landed, GB/s "
        "| pinned alone, GB/s |"
    )
    yield "| --- | ---: | ---: | ---: | ---: |"
    for each in costs:
        yield (
            f"| {each.workload}, {each.saves} saves | {each.own_p50_us:,.0f} | {each.own_max_us:,.0f} "
            f"| {each.landed_bytes_per_s / 1e9:.1f} ({each.of_pinned_rate:.0%}) | {each.pinned_bytes_per_s / 1e9:.1f} |"
        )
    yield ""
