"""`palimpsest explore`: the verdict is its exit code, and a finding can be seen again."""

from __future__ import annotations

import importlib.util

import pytest

from palimpsest.cli import main
from palimpsest.prefix_cache.controller import PrefixCacheController as Controller
from palimpsest_model_check.explore.explore import explore, run_once
from palimpsest_model_check.explore.saved import Schedule, replay
from palimpsest_model_check.explore.scenarios import SCENARIOS
from palimpsest_model_check.explore.strategies import RandomPriorities
from tests.slip import woken_before_the_record

SMALL = "save-waits-for-the-last-write"


@pytest.fixture
def slip(monkeypatch):
    """A committer that wakes before it has published the record."""
    monkeypatch.setattr(Controller, "_write_pool", woken_before_the_record)


def test_a_scenario_that_holds_exits_with_0_and_its_line_says_what_was_run(capsys):
    assert main(["explore", SMALL, "--bound", "0"]) == 0
    says = capsys.readouterr().out
    assert "1 scenarios" in says
    assert "at bound 0" in says
    assert "nothing found" in says


def test_random_priorities_run_as_many_schedules_as_they_are_told(capsys):
    assert main(["explore", SMALL, "--strategy", "pct", "--schedules", "7", "--seed", "3"]) == 0
    assert "7 schedules" in capsys.readouterr().out


def test_scenarios_side_by_side_are_told_in_their_order(capsys):
    names = [SMALL, "idle-steps-drain"]
    assert main(["explore", *names, "--bound", "0", "--jobs", "2"]) == 0
    table = capsys.readouterr().out.split("2 scenarios")[1]
    assert table.index(names[0]) < table.index(names[1])


def test_the_list_names_every_scenario(capsys):
    assert main(["explore", "--list"]) == 0
    says = capsys.readouterr().out
    assert all(name in says for name in SCENARIOS)


@pytest.mark.parametrize("arguments", [["nothing-of-the-sort"], ["--replay", "no-such-file.json"]])
def test_what_cannot_be_explored_exits_with_2(arguments, capsys):
    assert main(["explore", *arguments]) == 2
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.usefixtures("slip")
def test_a_finding_is_shown_saved_and_seen_again(tmp_path, capsys):
    assert main(["explore", SMALL, "--out", str(tmp_path)]) == 1
    says = capsys.readouterr().out
    assert "RecordBeforeWake" in says
    assert "palimpsest-committer" in says
    saved = tmp_path / f"{SMALL}.json"
    assert main(["explore", "--replay", str(saved)]) == 1
    assert "RecordBeforeWake" in capsys.readouterr().out


def test_a_finding_as_a_test_fails_while_the_slip_is_there_and_passes_when_it_is_gone(tmp_path, monkeypatch):
    file = tmp_path / "test_found.py"
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "_write_pool", woken_before_the_record)
        assert main(["explore", SMALL, "--out", str(tmp_path), "--pytest", str(file)]) == 1
        spec = importlib.util.spec_from_file_location("test_found", file)
        written = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(written)
        (test,) = [value for name, value in vars(written).items() if name.startswith("test_")]
        with pytest.raises(AssertionError, match="RecordBeforeWake"):
            test()
    test()


def test_a_damaged_schedule_is_refused(tmp_path, capsys):
    file = tmp_path / "bad.json"
    file.write_text('{"schedule": 1, "scenario": "one-page", "turns": [["engine"]]}')
    assert main(["explore", "--replay", str(file)]) == 2
    assert "not a saved schedule" in capsys.readouterr().err


def test_exploring_twice_runs_the_same_schedules():
    first, second = (explore(SCENARIOS["one-page"], bound=0) for _ in range(2))
    assert (first.schedules, first.states) == (second.schedules, second.states)
    assert first.exhausted


def test_random_runs_depend_on_the_seed_and_the_runs_before_alone():
    def steps(seed):
        strategy = RandomPriorities(seed)
        run_once(SCENARIOS[SMALL], strategy)
        strategy.next_run()
        return [(step.thread, step.operation, step.actions) for step in run_once(SCENARIOS[SMALL], strategy).steps]

    assert steps(5) == steps(5) != steps(6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_schedule_without_a_preemption_finds_anything(name):
    outcome = explore(SCENARIOS[name], bound=0, schedules=60)
    assert outcome.ok, str(outcome.found.finding)
    assert outcome.whole > 0


@pytest.mark.usefixtures("slip")
def test_a_saved_schedule_is_read_as_it_was_written(tmp_path):
    found = explore(SCENARIOS[SMALL], bound=0).found
    schedule = Schedule.of(found)
    assert Schedule.load(schedule.save(tmp_path)) == schedule
    again, missed = replay(schedule.scenario, schedule.turns)
    assert missed == 0
    assert [(step.thread, step.operation) for step in again.steps] == [
        (step.thread, step.operation) for step in found.steps
    ]
