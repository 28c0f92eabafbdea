"""The specification's actions and life cycles are those of the registry and of the declarations."""

from __future__ import annotations

import re
from pathlib import Path

from palimpsest.actions import ACTIONS
from palimpsest.lifecycle import WRITE_TASK, triples

SPEC = Path(__file__).resolve().parents[2] / "spec"

#: rows on their way, one at a time: they lie between two actions, and the code has no event for them
DATA_STEPS = {"RowGathered", "PoolRowWritten"}


def definition(module: str, name: str) -> str:
    """The right side of a definition, up to the next one that begins a line."""
    found = re.search(rf"^{name} ==(.*?)(?=^\S|\Z)", (SPEC / f"{module}.tla").read_text(), re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def actions_of_next() -> set[str]:
    """The action of each disjunct of Next, whatever it is quantified over."""
    lines = [line.strip() for line in definition("PrefixCache", "Next").splitlines()]
    disjuncts = [line.removeprefix("\\/").split(" : ")[-1].strip() for line in lines if line.startswith("\\/")]
    return {re.match(r"\w+", disjunct)[0] for disjunct in disjuncts}


def test_the_actions_of_next_are_those_of_the_registry():
    assert actions_of_next() - DATA_STEPS == {camel(name) for name in ACTIONS}


def test_the_steps_that_are_only_data_are_said_to_be():
    text = definition("PrefixCache", "Next")
    assert actions_of_next() >= DATA_STEPS
    assert all(f"{name} is data" in text for name in DATA_STEPS)


def test_the_environments_actions_are_marked_on_both_sides():
    marked = {camel(name) for name, entry in ACTIONS.items() if entry.environment}
    found = re.search(r"(\w+) and (\w+) are the environment's", definition("PrefixCache", "Next"))
    assert found
    assert set(found.groups()) == marked


def test_the_life_cycle_of_a_write_task_is_the_declared_one():
    legal = set(re.findall(r'<<"(\w+)", "(\w+)", "(\w+)">>', definition("Vocabulary", "TaskNext")))
    assert legal == {(triple.trigger, triple.source, triple.dest) for triple in triples(WRITE_TASK.machine())}
