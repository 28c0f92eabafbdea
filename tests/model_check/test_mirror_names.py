"""One action of the host mirror is one function, one event and one line of the specification, under one name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import palimpsest.host_mirror
from palimpsest.host_mirror.actions import MIRROR_ACTIONS, mirror_action
from palimpsest_model_check.manifest import load_manifest
from palimpsest_model_check.mirror_replay.schema import MIRROR_FORMS

PACKAGE = Path(palimpsest.host_mirror.__file__).parent
TEXT = (Path(__file__).resolve().parents[2] / "spec" / "HostMirror.tla").read_text()


def actions_of_next() -> set[str]:
    found = re.search(r"^Next ==(.*?)^Spec ==", TEXT, re.MULTILINE | re.DOTALL)
    assert found
    lines = [line.strip() for line in found[1].splitlines() if line.strip().startswith("\\/")]
    return {re.match(r"\w+", line.removeprefix("\\/").split(" : ")[-1].strip())[0] for line in lines}


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def functions() -> dict[str, list[ast.FunctionDef]]:
    """The functions that carry each action's mark."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "mirror_action":
                    found.setdefault(ast.literal_eval(mark.args[0]), []).append(node)
    return found


def emitted(tree: ast.AST) -> list[str]:
    """The names of the events that a piece of code emits."""
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "emit"
        and isinstance(node.args[0], ast.Constant)
    ]


def test_the_actions_of_next_are_those_of_the_registry_and_of_the_schema():
    assert actions_of_next() == {camel(name) for name in MIRROR_ACTIONS}
    assert MIRROR_FORMS.keys() == MIRROR_ACTIONS.keys()


def test_the_environments_actions_are_marked_on_both_sides():
    marked = {camel(name) for name, entry in MIRROR_ACTIONS.items() if entry.environment}
    found = re.search(r"(\w+) and (\w+) are the environment's", TEXT)
    assert found
    assert set(found.groups()) == marked


def test_every_action_has_one_function_of_its_name_which_emits_its_event_once():
    found = functions()
    assert {name: [each.name.removeprefix("_") for each in marked] for name, marked in found.items()} == {
        name: [name] for name in MIRROR_ACTIONS
    }
    assert {name: emitted(function) for name, (function,) in found.items()} == {name: [name] for name in MIRROR_ACTIONS}


def test_no_event_is_emitted_outside_the_function_of_its_action():
    everywhere = [event for path in PACKAGE.glob("*.py") for event in emitted(ast.parse(path.read_text()))]
    assert sorted(everywhere) == sorted(MIRROR_ACTIONS)


@pytest.mark.parametrize("name", [name for name, entry in MIRROR_ACTIONS.items() if entry.lock == "section"])
def test_what_queues_on_the_copy_stream_holds_the_section_that_the_stream_takes_to_report(name):
    (function,) = functions()[name]
    sections = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.With) and any(ast.unparse(i.context_expr).endswith("._section") for i in node.items)
    ]
    assert [emitted(section) for section in sections] == [[name]]


def test_an_unknown_action_cannot_be_marked():
    with pytest.raises(KeyError):
        mirror_action("dance")


def test_each_property_of_the_design_has_a_mutant_that_it_kills():
    design = {
        "OneHostWriter", "HostCopyAfterWrites", "CleanMeansDurable", "AcceptedRowsOnly", "EventNotReused",
        "RestoreKeepsRows", "NoRecycledHotRow",
    }  # fmt: skip
    mirror = [model for model in load_manifest().models.values() if model.module == "MirrorCases"]
    assert {model.kills for model in mirror if model.kind == "mutant"} >= design
    assert all(re.search(rf"^{name} ==", TEXT, re.MULTILINE) for name in design)
