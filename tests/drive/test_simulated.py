"""Behaviors that TLC simulates, taken by the package's own threads: also of models that no machine goes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from palimpsest_model_check.check import Simulation
from palimpsest_model_check.drive.behaviors import read_behavior, simulate
from palimpsest_model_check.drive.edges import only_runs_out
from palimpsest_model_check.drive.graph import Edge
from palimpsest_model_check.drive.models import simulable
from palimpsest_model_check.drive.report import stops_table
from palimpsest_model_check.drive.simulated import Simulated, drive_simulated
from palimpsest_model_check.drive.spec_state import State
from palimpsest_model_check.drive.telling import told_lines
from palimpsest_model_check.errors import CheckError
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import load_manifest
from palimpsest_model_check.view.of_counterexample import Saved

#: changes the package's text before anything of it is imported, then drives behaviors and saves what is found
_WITH_A_SLIP = """
import sys
from pathlib import Path
from palimpsest_model_check.mutants.code import Patched, load_code_mutants
Patched(load_code_mutants()[sys.argv[1]].texts()).install()
from palimpsest_model_check.check import Simulation
from palimpsest_model_check.drive.simulated import drive_simulated
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import load_manifest
manifest = load_manifest()
(model,) = manifest.select(["shared-ticket"])
done = drive_simulated(model, manifest, find_toolchain(), Simulation(2, 200, 0), rounds=0)
for course in done.courses:
    print(course.wrong, course.counterexample().save(Path(sys.argv[2])))
"""


def driven(name: str, behaviors: int, rounds: int) -> Simulated:
    (model,) = simulable([name])
    return drive_simulated(model, load_manifest(), find_toolchain(), Simulation(behaviors, 200, 0), rounds=rounds)


def texts(seed: int) -> list[str]:
    (model,) = simulable(["shared-ticket"])
    found = simulate(model, load_manifest(), find_toolchain(), Simulation(2, 200, seed)).found
    return [step.text for behavior in found for step in behavior.steps]


def test_behaviors_of_a_small_model_are_taken_to_their_ends():
    done = driven("shared-ticket", 8, rounds=0)
    assert done.wrong == []
    assert done.ended == len(done.courses) == 8
    assert done.steps == sum(len(course.steps) for course in done.courses) > 200


def test_of_a_large_model_the_code_goes_its_way_and_tlc_allows_each_step():
    done = driven("general", 10, rounds=1)
    assert done.wrong == []
    assert done.unfit_schedules == 18  # of 24
    left = [course for course in done.courses if course.graph.told]
    assert left  # the code has chosen another step than a behavior, and TLC was asked
    assert done.steps > 300
    assert stops_table([done]).row_count == len(done.stops) > 0


def test_the_same_seed_gives_the_same_behaviors():
    assert texts(3) == texts(3) != texts(4)


def test_a_slip_is_found_at_its_step_and_the_behavior_is_saved(tmp_path: Path):
    slip = "ticket-given-back-with-its-first-task"
    command = [sys.executable, "-c", _WITH_A_SLIP, slip, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    saved = [Saved.load(tmp_path / f"shared-ticket-behavior-{number}.json") for number in (1, 2)]
    for number, example in enumerate(saved, 1):
        last = example.steps[-1]
        assert last.action.startswith("HostReady")  # the step that the code was asked for
        assert f"behavior {number}, step {last.number - 1}: " in said
        assert "host_ready" in example.says
        assert "staged_bytes" in example.says


def test_only_a_model_of_the_prefix_cache_is_simulated():
    with pytest.raises(CheckError, match="and not mirror-filled"):
        simulable(["mirror-filled"])


# ---------------------------------------------------------------- files

BEHAVIOR = """---- MODULE behavior_0_0 ----
STATE_1 ==
/\\ did = [action |-> "Init", by |-> "", of |-> 0, step |-> 0, later |-> 10]
/\\ gens = 0

STATE_2 ==
/\\ did = [action |-> "BeginFetch", by |-> "builder", of |-> 0, step |-> 1, later |-> 10]
/\\ gens = 1

STATE_3 ==
/\\ did = [action |-> "Publish", by |-> "", of |-> 0, step |-> 2, later |-> 10]
/\\ gens = 2

====
"""


def test_a_file_tells_states_actions_and_threads(tmp_path: Path):
    file = tmp_path / "behavior_0_0"
    file.write_text(BEHAVIOR)
    behavior = read_behavior(file)
    assert [(step.action, step.thread) for step in behavior.steps] == [
        ("begin_fetch", "builder"),
        ("publish", "engine"),
    ]
    assert [step.text for step in behavior.steps] == ["/\\ gens = 1", "/\\ gens = 2"]
    assert behavior.first.state["gens"] == 0


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gens = 1", "gens = [c \\in Cells |-> <expression>]", "state 2: a state whose gens cannot be read"),
        ("/\\ gens = 1\n", "", "not every state has gens"),
        ("step |-> 1", "step |-> 2", "state 2 is the one after 2 steps, and not after 1"),
        ('"Publish"', '"Publishes"', "state 3: an action publishes that the package does not know"),
        (BEHAVIOR[BEHAVIOR.index("STATE_3") :], "", "no end after 2 states"),
        (BEHAVIOR[BEHAVIOR.index("STATE_2") : BEHAVIOR.index("STATE_3")], "", "state 3 is the one after 2 steps"),
        (", by", ", who", "does not say which step"),
        (BEHAVIOR, "", "no end after 0 states"),
    ],
)
def test_a_file_that_is_not_whole_is_an_error_with_its_name_and_place(tmp_path: Path, old: str, new: str, says: str):
    file = tmp_path / "behavior_0_0"
    file.write_text(BEHAVIOR.replace(old, new))
    with pytest.raises(CheckError, match=f"behavior_0_0.*{says}"):
        read_behavior(file)


def test_a_line_of_next_that_is_no_action_by_itself_is_an_error():
    told = told_lines("Next ==\n    \\* a word\n    \\/ \\E t \\in {1, 2} : Go(t)\n    \\/ Stay\n\nSpec == 1\n")
    assert [line.split(" /\\ did' = ")[0] for line in told] == ["\\E t \\in {1, 2} : Go(t)", "Stay"]
    with pytest.raises(CheckError, match="not an action by itself: Go /"):
        told_lines("Next ==\n    \\/ Go /\\ x' = 1\n\nSpec == 1\n")


# ---------------------------------------------------------------- waits

AWAITED = {1: {"state": "COPYING"}}


@pytest.mark.parametrize(("tasks", "late"), [(AWAITED, True), ({1: {"state": "FAILED"}}, False), ({}, False)])
def test_a_join_that_ended_by_itself_is_not_taken_for_one_that_ran_out(tasks, late):
    reader = {"pc": "joining", "joins": frozenset({1})}
    before = State({"tasks": tasks, "failed": True, "rdr": {"prefetch": reader}})
    after = State({"rdr": {"prefetch": {"pc": "error"}}})
    assert only_runs_out(Edge("s", "join_end", "prefetch", "t"), before, after) is late
