"""The specification's steps, taken by the package's own threads: states are the same after each, and a slip is found
at the action that it is in."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from palimpsest_model_check.drive.drive import Driven, drive
from palimpsest_model_check.drive.graph import Graph, dump
from palimpsest_model_check.drive.models import drivable
from palimpsest_model_check.drive.report import never
from palimpsest_model_check.drive.spec_state import differing
from palimpsest_model_check.errors import CheckError
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import load_manifest

#: changes the package's text before anything of it is imported, then drives a graph
_WITH_A_SLIP = """
import pickle, sys
from palimpsest_model_check.mutants.code import Patched, load_code_mutants
Patched(load_code_mutants()[sys.argv[1]].texts()).install()
from palimpsest_model_check.drive.drive import drive
with open(sys.argv[2], "rb") as file:
    print(drive(pickle.load(file)).wrong)
"""


def graph_of(name: str) -> Graph:
    (model,) = drivable([name])
    return dump(model, load_manifest(), find_toolchain())


@pytest.fixture(scope="module")
def deferred() -> Graph:
    return graph_of("shared-ticket")


@pytest.fixture(scope="module")
def driven(deferred: Graph) -> Driven:
    return drive(deferred)


def test_the_code_takes_the_steps_of_the_specification_and_comes_to_the_same_states(driven: Driven):
    assert driven.wrong == []
    edges = len(driven.graph.edges)
    assert len(driven.coverage.driven) > 0.95 * edges
    classes = {str(edge) for edge in driven.graph.edges}
    assert {str(edge) for edge in driven.coverage.driven} == classes


def test_each_edge_that_the_code_does_not_take_is_counted_with_what_it_does_instead(driven: Driven):
    coverage = driven.coverage
    assert never([driven])[("reserve (engine)", "the engine waits: acquire the state lock")] == len(coverage.never)
    settled = len(coverage.driven) + len(coverage.never) + len(coverage.unasked())
    assert settled == len(driven.graph.edges)


def test_at_a_shutdown_saves_get_no_page_and_calls_raise_what_they_say():
    done = drive(graph_of("live-end"), runs=120)
    assert done.found is None
    # of a step that is still being saved the builder gets nothing, and can ask again
    allowed = {"ShutdownError", "WaitTimeoutError", "WriteFailedError", "BadStepError"}
    assert {name.split(": ")[1] for name in done.errors} <= allowed


def said_of(graph: Graph, slip: str, folder: Path) -> str:
    file = folder / "graph.pickle"
    file.write_bytes(pickle.dumps(graph))
    command = [sys.executable, "-c", _WITH_A_SLIP, slip, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def test_a_slip_is_found_at_the_action_that_it_is_in(deferred: Graph, tmp_path: Path):
    said = said_of(deferred, "ticket-given-back-with-its-first-task", tmp_path)
    assert "host_ready" in said
    assert "staged_bytes" in said


def test_an_action_that_the_code_does_not_do_any_more_is_missed(deferred: Graph, tmp_path: Path):
    assert "the code never does escalate (engine)" in said_of(deferred, "ended-requests-rows-not-written", tmp_path)


def test_a_state_that_differs_is_told_place_by_place():
    expected = {"holders": {1: {("step", 1)}}, "failed": False}
    found = {"holders": {1: set()}, "failed": False}
    assert differing(expected, found) == ["holders[1] is set(), and {('step', 1)} in the specification"]
    assert differing(expected, expected) == []


def test_what_is_no_small_model_of_the_prefix_cache_is_refused_by_name():
    with pytest.raises(CheckError, match="general"):
        drivable(["general"])
