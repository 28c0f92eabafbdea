"""The in-process checker and TLC have the same graph; where a rule is wrong, the edge that shows it is named."""

from __future__ import annotations

import pytest

from palimpsest import cli
from palimpsest_model_check.graph import compare as comparing
from palimpsest_model_check.graph.compare import compare
from palimpsest_model_check.graph.dump import Graph, dump
from palimpsest_model_check.graph.report import comparable
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import Model, load_manifest


@pytest.fixture(scope="module")
def small() -> tuple[Model, Graph]:
    manifest = load_manifest()
    model = manifest.models["shared-ticket"]
    return model, dump(model, manifest, find_toolchain())


def test_each_edge_of_tlc_is_taken_and_leads_to_the_same_state(small):
    model, graph = small
    found = compare(model, graph, foreign=200)
    assert found.same, "\n".join(found.differences)
    assert (found.states, found.edges, found.silent) == (model.states, len(graph.edges), 28)
    assert found.given.total() > 100
    assert not {"Publish", "TakeStep", "HostReady", "Wake"} & {action for action, count in found.taken.items() if count}


def test_a_rule_that_refuses_too_much_or_comes_to_another_state_is_named_with_its_edge(small, monkeypatch):
    model, graph = small
    machine = comparing.Numbered
    refuses = type("Refuses", (machine,), {"wake": lambda self, *_: self.reject("never", "RecordBeforeWake")})
    monkeypatch.setattr(comparing, "Numbered", refuses)
    assert any(
        says.startswith("Wake, state") and "guard never" in says
        for says in compare(model, graph, foreign=1).differences
    )
    deaf = type("Deaf", (machine,), {"release_tickets": lambda self, tasks: None})
    monkeypatch.setattr(comparing, "Numbered", deaf)
    assert any(says.startswith("HostReady, state") for says in compare(model, graph, foreign=1).differences)


def test_what_has_no_state_graph_here_is_refused(capsys):
    assert cli.main(["check", "mates", "--graph"]) == 2
    assert "blocks of one slot only" in capsys.readouterr().err
    names = [model.name for model in comparable(load_manifest().select(which="quick"))]
    assert {"shared-ticket", "stalled-end", "shutdown-deferred"} <= set(names)
