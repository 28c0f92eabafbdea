"""The in-process checker and TLC have the same graph; where a rule is wrong, the edge that shows it is named."""

from __future__ import annotations

import pytest

from palimpsest import cli
from palimpsest_model_check.graph import telling
from palimpsest_model_check.graph.compare import Comparison, compare
from palimpsest_model_check.graph.dump import Graph, dump
from palimpsest_model_check.graph.mirror_machine import NamedRows
from palimpsest_model_check.graph.report import comparable, smallest
from palimpsest_model_check.graph.systems import system_of
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import Model, load_manifest


def of(name: str) -> tuple[Model, Graph]:
    manifest = load_manifest()
    model = manifest.models[name]
    return model, dump(system_of(model).dumped(model), manifest, find_toolchain())


@pytest.fixture(scope="module")
def small() -> tuple[Model, Graph]:
    return of("shared-ticket")


@pytest.fixture(scope="module")
def mirror() -> tuple[Model, Graph]:
    return of("mirror-elsewhere")


def test_each_edge_of_tlc_is_taken_and_leads_to_the_same_state(small):
    model, graph = small
    found = compare(model, graph, foreign=200)
    assert found.same, "\n".join(found.differences)
    assert (found.states, found.edges, found.silent) == (model.states, len(graph.edges), 28)
    assert found.given.total() > 100
    assert not {"Publish", "TakeStep", "HostReady", "Wake"} & {action for action, count in found.taken.items() if count}


def test_a_rule_that_refuses_too_much_or_comes_to_another_state_is_named_with_its_edge(small, monkeypatch):
    model, graph = small
    machine = telling.Numbered
    refuses = type("Refuses", (machine,), {"wake": lambda self, *_: self.reject("never", "RecordBeforeWake")})
    monkeypatch.setattr(telling, "Numbered", refuses)
    assert any(
        says.startswith("Wake, state") and "guard never" in says
        for says in compare(model, graph, foreign=1).differences
    )
    deaf = type("Deaf", (machine,), {"release_tickets": lambda self, tasks: None})
    monkeypatch.setattr(telling, "Numbered", deaf)
    assert any(says.startswith("HostReady, state") for says in compare(model, graph, foreign=1).differences)


def refused(found: Comparison) -> dict[str, int]:
    """Of the events given where TLC has no edge of them, those refused, by action."""
    return {action: found.given[action] - found.taken[action] for action in found.given}


def test_the_host_mirrors_rules_have_the_graph_of_one_rank(mirror):
    found = compare(*mirror)
    assert found.same, "\n".join(found.differences)
    assert (found.states, found.edges, found.silent) == (148, 179, 54)
    assert found.given.total() > 2500
    assert sum(refused(found).values()) > 0.95 * found.given.total()
    assert not {"FinishDrafts", "FinishStep", "CopyRuns", "ComputeRuns"} & set(+found.taken)
    assert all(refused(found)[action] for action in found.given)


def test_the_host_mirrors_rules_have_the_graph_of_two_ranks():
    found = compare(*of("mirror-ranks-copied"), foreign=500)
    assert found.same, "\n".join(found.differences)
    assert (found.states, found.edges) == (525, 754)
    assert {"Meet", "CopyHostBlocks"} <= set(found.given)
    assert not {"Meet", "CopyRuns"} & set(+found.taken)


@pytest.mark.parametrize(
    ("rule", "slip", "found_at"),
    [
        ("_stand", lambda *_: None, "FinishDrafts, state"),
        ("land", lambda *_: None, "CopyRuns, state"),
        ("_restore", lambda *_: None, "StartTransfers, state"),
        ("order", lambda self, rank: None, "FinishTarget, state"),
        ("finish_drafts", lambda self, *_: self.reject("never", "CleanMeansDurable"), "refused: guard never"),
    ],
)
def test_a_slip_in_a_rule_of_the_host_mirror_is_named_with_its_edge(mirror, monkeypatch, rule, slip, found_at):
    monkeypatch.setattr(NamedRows, rule, slip)
    assert any(found_at in says for says in compare(*mirror, foreign=1).differences)


def test_a_guard_that_is_forgotten_takes_events_that_tlc_has_no_edge_of(mirror, monkeypatch):
    before = compare(*mirror)
    monkeypatch.setattr(NamedRows, "through", lambda self, rank: None)
    after = compare(*mirror)
    assert not before.taken["FinishStep"]
    assert after.taken["FinishStep"]


def test_what_has_no_state_graph_here_is_refused(capsys):
    assert cli.main(["check", "mates", "--graph"]) == 2
    assert "no state graph for mates" in capsys.readouterr().err
    names = [model.name for model in comparable(load_manifest().select(which="quick"))]
    assert {"shared-ticket", "stalled-end", "shutdown-deferred", "mirror-filled", "mirror-pages"} <= set(names)
    assert [model.name for model in smallest(load_manifest().select(which="full"))] == [
        "shared-ticket",
        "mirror-rested",
    ]
