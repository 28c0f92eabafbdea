"""A run on a terminal: a line per workload with a bar for its ratio, and two runs side by side."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from palimpsest.bench.results import SAVE_GOAL_US, GrowthPoint, Measured, Report, SaveCost, TracingCost

#: cells of a bar, and how many floors they stand for
BAR_CELLS, BAR_FLOORS = 24, 12.0


def bar(ratio: float, goal: float) -> Text:
    """The ratio as a bar, green where the goal is met, with a mark where the goal ends."""
    cells = min(BAR_CELLS, max(1, round(ratio / BAR_FLOORS * BAR_CELLS)))
    mark = min(BAR_CELLS - 1, round(goal / BAR_FLOORS * BAR_CELLS))
    drawn = Text()
    for cell in range(BAR_CELLS):
        if cell == mark:
            drawn.append("|", style="bold")
        else:
            drawn.append("█" if cell < cells else " ", style="green" if round(ratio, 2) <= goal else "red")
    return drawn


def print_report(console: Console, report: Report) -> None:
    """All tables that the run has something for."""
    where = ", ".join([report.device, f"{report.threads} threads", *(f"{k} {v}" for k, v in report.versions.items())])
    console.print(f"{where}, {report.date}{', quick: not to be quoted' if report.quick else ''}", highlight=False)
    if report.workloads:
        console.print(workload_table(report.workloads))
    if report.growth:
        console.print(growth_table(report.growth))
    if report.tracing:
        console.print(tracing_table(report.tracing))
    if report.saves:
        console.print(save_table(report.saves))
    if report.rows_wrong:
        console.print(f"{report.rows_wrong:,} delivered rows are WRONG", style="bold red")


def workload_table(measured: list[Measured]) -> Table:
    """The cache beside its floor."""
    table = Table(title=f"{sum(each.rows_checked for each in measured):,} rows checked")
    _columns(table, "workload", "", "p50, µs", "floor, µs", "x floor", "goal", "met", "", "wrong")
    for each in measured:
        table.add_row(
            each.workload, each.title, f"{each.p50_us:,.0f}", f"{each.floor_p50_us:,.0f}", f"{each.ratio:.2f}",
            f"{each.goal:g}", "yes" if each.met else "no", bar(each.ratio, each.goal), f"{each.rows_wrong:,}",
        )  # fmt: skip
    return table


def growth_table(points: list[GrowthPoint]) -> Table:
    """How a decode step grows."""
    table = Table(title="a decode step beyond its copies")
    _columns(table, "what grows", "slots", "live", "in the step", "p50, µs", "floor, µs", "µs per live request")
    for each in points:
        table.add_row(
            each.sweep, f"{each.slots:,}", f"{each.live:,}", f"{each.requests:,}", f"{each.p50_us:,.0f}",
            f"{each.floor_p50_us:,.0f}", f"{each.us_per_live_request:.2f}",
        )  # fmt: skip
    return table


def tracing_table(costs: list[TracingCost]) -> Table:
    """What tracing adds."""
    table = Table(title="tracing, of a decode step of 64 requests")
    _columns(table, "sink", "added, µs", "% of the step", "goal, %")
    for each in costs:
        goal = f"{each.goal_percent:g}" if each.goal_percent else "noise"
        table.add_row(each.sink, f"{each.p50_us - each.off_p50_us:+,.0f}", f"{each.percent:.1f}", goal)
    return table


def save_table(costs: list[SaveCost]) -> Table:
    """How long saves keep the engine thread, and how fast rows land."""
    table = Table(title=f"save_outputs beyond the device's work (goal {SAVE_GOAL_US} µs)")
    _columns(table, "workload", "saves", "p50, µs", "most, µs", "landed, GB/s", "pinned alone, GB/s", "part of it")
    for each in costs:
        table.add_row(
            each.workload, f"{each.saves}", f"{each.own_p50_us:,.0f}", f"{each.own_max_us:,.0f}",
            f"{each.landed_bytes_per_s / 1e9:.1f}", f"{each.pinned_bytes_per_s / 1e9:.1f}",
            f"{each.of_pinned_rate:.2f}",
        )  # fmt: skip
    return table


def print_comparison(console: Console, names: tuple[str, str], first: Report, second: Report) -> None:
    """Two runs side by side, workload by workload, and the change of the ratio from the first to the second."""
    if (first.device, first.threads, first.quick) != (second.device, second.threads, second.quick):
        console.print("these runs differ in device, threads or size: compare ratios with care", style="yellow")
    table = Table(title="x floor: both, and the change")
    _columns(table, "workload", "", *names, "change", "goal")
    others = {each.workload: each for each in second.workloads}
    for each in first.workloads:
        other = others.get(each.workload)
        if other is not None:
            change = 100 * (other.ratio / each.ratio - 1)
            table.add_row(
                each.workload,
                each.title,
                f"{each.ratio:.2f}",
                f"{other.ratio:.2f}",
                f"{change:+.0f} %",
                f"{each.goal:g}",
            )
    console.print(table)


def _columns(table: Table, *names: str) -> None:
    words = {"workload", "", "what grows", "sink"}
    for name in names:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=name in ("", "workload"))
