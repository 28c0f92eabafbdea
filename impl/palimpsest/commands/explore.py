"""`palimpsest explore`: run the package's real threads one at a time, in every order within a bound."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from palimpsest.commands._common import command_parser, count, make_console, positive

if TYPE_CHECKING:
    from rich.console import Console

    from palimpsest_model_check.explore.explore import Outcome
    from palimpsest_model_check.explore.scenario import Scenario

_DESCRIPTION = """\
Runs the package's own code with a scheduler under its locks, conditions, events, threads and executor: one thread
runs at a time, and at each operation, and at each copy of shared rows, the scheduler chooses who goes on. Each event
is held against the specification's rules at once, and must come under its action's lock; each row that is delivered is
held against a plain model.

Depth-first search runs every schedule with at most --bound preemptions (and however many turns that nobody takes from
another thread); states that were seen before are not gone on from. Up to bound 1 a preemption may also come right
after a lock is released, an event set or a job submitted: what follows there is guarded by nothing. PCT draws random
priorities from the seed.

A finding is shown as a table of threads and saved. Exits with 1 when something is found, and with 2 when nothing can
be explored."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `explore` and its options."""
    parser = command_parser(subparsers, "explore", "run the real threads in every order within a bound", _DESCRIPTION)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="a scenario; else all")
    parser.add_argument(
        "--strategy", choices=("dfs", "pct"), default="dfs", help="depth first, or random priorities (dfs)"
    )
    parser.add_argument("--bound", type=count, default=1, metavar="N", help="dfs: preemptions in a schedule (1)")
    parser.add_argument(
        "--schedules", type=positive, metavar="N", help="at most N of each scenario (dfs: all, pct: 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="pct: seed of the priorities (0)")
    parser.add_argument("--jobs", type=positive, metavar="N", help="scenarios at a time (cores)")
    parser.add_argument(
        "--out", type=Path, default=Path("schedules"), metavar="DIR", help="folder of what is found (schedules)"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a saved schedule again and show it")
    parser.add_argument("--pytest", type=Path, metavar="FILE", help="write the first finding's schedule as a test")
    parser.add_argument("--list", action="store_true", help="show the scenarios and what each is for")


def run(args: argparse.Namespace) -> int:
    """Explore the scenarios, show the table; 0 when nothing is found, 1 when something is, 2 when nothing can be."""

    from palimpsest_model_check.errors import CheckError
    from palimpsest_model_check.explore import report
    from palimpsest_model_check.explore.scenarios import SCENARIOS

    console = make_console()
    try:
        if args.replay:
            return _replay(args, console)
        scenarios = SCENARIOS.select(args.scenarios)
        if args.list:
            console.print(report.scenario_table(scenarios))
            return 0
        return _explore(args, scenarios, console)
    except CheckError as error:
        print(f"palimpsest explore: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("palimpsest explore: interrupted", file=sys.stderr)
        return 130


def _explore(args: argparse.Namespace, scenarios: list[Scenario], console: Console) -> int:
    from palimpsest_model_check.check import usable_cores
    from palimpsest_model_check.explore import report
    from palimpsest_model_check.explore.parallel import Search, explore_all

    search = Search(None if args.strategy == "pct" else args.bound, args.schedules, args.seed)
    with report.ExploreProgress(console) as shown:
        jobs = args.jobs or usable_cores()
        outcomes = explore_all(scenarios, search, jobs, shown.progressed, shown.ended)
    for outcome in outcomes:
        _show(args, outcome, console)
    console.print(report.outcome_table(outcomes))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _show(args: argparse.Namespace, outcome: Outcome, console: Console) -> None:
    """Show and save what was found, if anything."""
    from palimpsest_model_check.explore.report import print_run
    from palimpsest_model_check.explore.saved import Schedule

    if outcome.found is None:
        return
    print_run(console, outcome.found)
    schedule = Schedule.of(outcome.found)
    console.print(f"saved as {schedule.save(args.out)}", markup=False, highlight=False, soft_wrap=True)
    if args.pytest and not args.pytest.exists():
        args.pytest.write_text(schedule.as_test(), encoding="utf-8")


def _replay(args: argparse.Namespace, console: Console) -> int:
    from palimpsest_model_check.explore.report import print_run
    from palimpsest_model_check.explore.saved import Schedule, replay

    schedule = Schedule.load(args.replay)
    run, missed = replay(schedule.scenario, schedule.turns)
    print_run(console, run)
    if missed:
        print(f"palimpsest explore: {missed} turns could not be taken as saved: the code has changed", file=sys.stderr)
    if args.pytest:
        args.pytest.write_text(schedule.as_test(), encoding="utf-8")
    return 0 if run.finding is None else 1
