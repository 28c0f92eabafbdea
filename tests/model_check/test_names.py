"""The specification's actions and life cycles are those of the registry and of the declarations."""

from __future__ import annotations

import re
from pathlib import Path

from palimpsest.actions import ACTIONS
from palimpsest.lifecycle import WRITE_TASK, triples

SPEC = Path(__file__).resolve().parents[2] / "spec" / "PrefixCache.tla"

#: rows on their way, one at a time: they lie between two actions, and the code has no event for them
DATA_STEPS = {"Gather", "Scatter"}


def definition(name: str) -> str:
    """The right side of a definition."""
    found = re.search(rf"^{name} ==(.*?)(?=^\S|\Z)", SPEC.read_text(), re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def disjuncts(name: str) -> set[str]:
    """The names that a definition is a disjunction of."""
    return {part.strip() for part in definition(name).split("\\/") if part.strip()}


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def test_the_actions_of_next_are_those_of_the_registry():
    named = {action for group in disjuncts("Next") for action in disjuncts(group)}
    assert named - DATA_STEPS == {camel(name) for name in ACTIONS}


def test_the_environments_actions_are_marked_on_both_sides():
    marked = {camel(name) for name, entry in ACTIONS.items() if entry.environment}
    assert disjuncts("Environment") == marked


def test_the_life_cycle_of_a_write_task_is_the_declared_one():
    legal = set(re.findall(r'<<"(\w+)", "(\w+)", "(\w+)">>', definition("Legal")))
    assert legal == {(triple.trigger, triple.source, triple.dest) for triple in triples(WRITE_TASK.machine())}
