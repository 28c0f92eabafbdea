"""Evidence on the code: mutants of it, schedules of its threads, its traces, random programs, the soak, the tests."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import palimpsest
from palimpsest.actions import ACTIONS
from palimpsest.runners.reference import ReferenceRunner, RunnerSettings
from palimpsest.runners.reference.events import event_tag
from palimpsest.runners.reference.workload import builtin_workload, with_departures, with_parallel_samples
from palimpsest.runners.sparse import SparseRequest, SparseRunner, SparseSettings
from palimpsest.trace import MemorySink

from ..explore.explore import Outcome
from ..explore.parallel import Search, explore_all
from ..explore.report import verdict
from ..explore.saved import Schedule
from ..explore.scenarios import SCENARIOS
from ..mutants.code_report import COLUMNS, cells, select
from ..mutants.code_trial import try_all
from ..programs.program import Program
from ..programs.soak import act, soak
from ..replay.machine import replay as replay_in_process
from ..tlc_replay import replay_in_tlc, windows
from .evidence import Detail
from .kind import Found, MissingError, Setting, kind

#: of a quick run: mutants, preemptions of a schedule, requests, programs, seconds; of a full one
QUICK_MUTANTS = 12
QUICK_BOUND, FULL_BOUND = 1, 2
QUICK_REQUESTS, FULL_REQUESTS = 60, 400
QUICK_PROGRAMS, FULL_PROGRAMS = 60, 2_000
QUICK_SOAK_S, FULL_SOAK_S = 15.0, 600.0
#: of the tests: the interleavings that were found; whoever wants all has `make test`
QUICK_TESTS = ("tests/schedule",)
TESTS_LIMIT_S = 3600.0
NOT_IN_TLC = "no event of the run was replayed in TLC"


@kind(
    "code-mutants",
    "each slip of a concurrency change in the package is caught by its property, and no other",
    alone=True,
)
def code_mutants(setting: Setting) -> Found:
    """A random sample, or all."""
    mutants = select(())
    if setting.quick:
        mutants = random.Random(setting.seed).sample(mutants, QUICK_MUTANTS)
    with setting.console.status("mutants of the code"):
        trials = try_all(mutants, setting.jobs, lambda _: None)
    wrong = [f"{trial.mutant.name} {trial.wrong}" for trial in trials if trial.wrong]
    by = Counter(trial.by for trial in trials)
    says = ", ".join(f"{name} {times}" for name, times in by.most_common())
    return Found(len(trials), "mutants", wrong, says, Detail(COLUMNS, tuple(map(cells, trials))))


@kind(
    "explore",
    "no schedule of the package's own threads breaks a property, delivers a wrong row or gets stuck",
    alone=True,
)
def explore(setting: Setting) -> Found:
    """All schedules of each scenario with at most one preemption, or two."""
    bound = QUICK_BOUND if setting.quick else FULL_BOUND
    scenarios, ended = list(SCENARIOS.values()), itertools.count(1)
    with setting.console.status("schedules") as status:

        def told(outcome: Outcome) -> None:
            status.update(f"schedules: {next(ended)} of {len(scenarios)} scenarios, {outcome.scenario.name} is through")

        outcomes = explore_all(scenarios, Search(bound, None, setting.seed), setting.jobs, lambda _: None, told)
    wrong = [f"{each.scenario.name}: {each.found.finding}" for each in outcomes if each.found]
    if setting.findings is not None:
        for run in (each.found for each in outcomes if each.found):
            Schedule.of(run).save(setting.findings)
    whole = sum(each.exhausted for each in outcomes)
    says = f"{len(outcomes)} scenarios, {whole} of them exhausted at bound {bound}"
    detail = Detail(("scenario", "schedules", "states", "verdict"), tuple(map(_explored, outcomes)))
    return Found(sum(each.schedules for each in outcomes), "schedules", wrong, says, detail)


def _explored(outcome: Outcome) -> tuple[str, ...]:
    return outcome.scenario.name, f"{outcome.schedules:,}", f"{outcome.states:,}", verdict(outcome)


@kind("replay", "the reference runner delivers right rows only, and its trace is one of the specification")
def replay(setting: Setting) -> Found:
    """One run with few blocks, replayed in this process, and in TLC where it touches its busiest blocks."""
    count = QUICK_REQUESTS if setting.quick else FULL_REQUESTS
    requests = with_departures(with_parallel_samples(builtin_workload(count, setting.seed), 5), 7)
    sink = MemorySink(event_tag)
    settings = RunnerSettings(num_blocks=56, max_tokens=96, gpu_staging_bytes=1 << 15)
    with setting.console.status("a run of the reference runner, and its trace"):
        report = ReferenceRunner(requests, settings, trace=sink).run()
        sink.close()
        said = replay_in_process("the run", sink.config, sink.events)
        parts = replay_in_tlc(windows("the run", sink.config, sink.events)) if said.ok else []
    wrong = [] if report.right else [f"{report.verdict.rows_wrong} rows are wrong", *report.verdict.faults[:3]]
    wrong += [] if said.ok else [str(said)]
    if setting.findings is not None and not said.ok:
        setting.findings.mkdir(parents=True, exist_ok=True)
        (setting.findings / "run.ndjson").write_text("\n".join(sink.lines()) + "\n", encoding="utf-8")
    wrong += [str(part) for part in parts if not part.ok]
    in_tlc = sum(part.events for part in parts)
    wrong += [] if in_tlc else [NOT_IN_TLC]
    says = (
        f"{len(said.actions)} of {len(ACTIONS)} actions, {in_tlc:,} events in TLC, {report.verdict.rows_checked:,} rows"
    )
    rows = tuple((action, f"{times:,}") for action, times in sorted(said.actions.items()))
    return Found(said.accepted, "events", wrong, says, Detail(("action", "times"), rows))


@kind("mirror", "the sparse runner's rows on host and device are the ones that were computed, after every step")
def mirror(setting: Setting) -> Found:
    """Runs of the second system, with pages spilled and restored, and drafts rejected; of the first the trace."""
    chance, rows, wrong, sink = random.Random(setting.seed), 0, [], MemorySink()
    with setting.console.status("runs of the sparse runner"):
        for number in range(2 if setting.quick else 12):
            requests = [
                SparseRequest(f"r{at}", tuple(chance.randrange(97) for _ in range(8 + 5 * at)), 12) for at in range(4)
            ]
            settings = SparseSettings(eager=bool(number % 2), num_resident_blocks=6, seed=number)
            report = SparseRunner(requests, settings, trace=None if number else sink).run()
            rows += report.verdict.host_rows + report.verdict.device_rows
            wrong += report.verdict.faults
        sink.close()
        said = replay_in_process("the run", sink.config, sink.events)
        parts = replay_in_tlc(windows("the run", sink.config, sink.events)) if said.ok else []
    wrong += [] if said.ok else [str(said)]
    wrong += [] if sink.events[-1].action == "shutdown" else ["the mirror was not shut down at the end of its trace"]
    wrong += [str(part) for part in parts if not part.ok]
    in_tlc = sum(part.events for part in parts)
    wrong += [] if in_tlc else [NOT_IN_TLC]
    return Found(rows, "rows", wrong, f"{said.accepted:,} events replayed; {in_tlc:,} in {len(parts)} parts in TLC")


@kind("programs", "random programs get the rows of a plain model; bad calls change nothing; faults are told")
def programs(setting: Setting) -> Found:
    """Programs drawn from the seed, eager and threaded, each with its trace replayed."""
    done: Counter[str] = Counter()
    wrong: list[str] = []
    rows = 0
    count = QUICK_PROGRAMS if setting.quick else FULL_PROGRAMS
    with setting.console.status("random programs"):
        for number in range(count):
            choices = random.Random(f"{setting.seed} {number}")
            program = Program(eager=bool(number % 2))
            try:
                for _ in range(40):
                    act(program, choices.randrange)
                program.finish()
                said = replay_in_process(f"program {number}", program.trace.config, program.trace.events)
                wrong += [] if said.ok else [str(said)]
            except Exception as error:  # it is what the program found
                wrong.append(f"program {number}: {type(error).__name__}: {error}")
            done += program.done
            rows += program.rows
    detail = Detail(("what", "times"), tuple((what, f"{times:,}") for what, times in sorted(done.items())))
    return Found(count, "programs", wrong, f"{done['step']:,} steps, {rows:,} rows", detail)


@kind("soak", "after a long time with faults nothing is held, no thread is left, memory has not grown")
def soaking(setting: Setting) -> Found:
    """A quarter of a minute, or ten."""
    with setting.console.status("soak"):
        soaked = soak(QUICK_SOAK_S if setting.quick else FULL_SOAK_S, seed=setting.seed)
    says = f"{soaked.rows:,} rows, {soaked.faults:,} faults, grown by {soaked.growth_bytes / 2**20:.0f} MiB"
    return Found(soaked.lives, "caches", soaked.wrong, says)


@kind("tests", "the repository's tests pass, and their traces are replayed")
def tests(setting: Setting) -> Found:
    """pytest in a process of its own; a part of the tests, or all. Needs the repository."""
    root = Path(palimpsest.__path__[0]).parents[1]
    if not (root / "tests" / "conftest.py").is_file():
        raise MissingError("needs the repository: the tests are not part of an installed package")
    command = [sys.executable, "-m", "pytest", "-q", *(QUICK_TESTS if setting.quick else ())]
    with setting.console.status("tests"):
        ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TESTS_LIMIT_S, check=False)
    lines = ran.stdout.strip().splitlines() or [ran.stderr.strip()[-300:] or "pytest says nothing"]
    passed = int(found[1]) if (found := re.search(r"(\d+) passed", lines[-1])) else 0
    replayed = next((line for line in lines if line.startswith("palimpsest: ")), "").removeprefix("palimpsest: ")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return Found(passed, "tests", [] if ran.returncode == 0 else [*failed[:8], lines[-1]], replayed)
