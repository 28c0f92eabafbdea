"""The specification's actions and life cycles are those of the registry and of the declarations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from palimpsest.actions import ACTIONS
from palimpsest.lifecycle import SLOT_ROW, STAGING_PAGE, STEP, WRITE_TASK, triples

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


def test_the_states_and_transitions_of_tasks_and_rows_are_the_declared_ones():
    for states, table, declared in (("TaskStates", "TaskNext", WRITE_TASK), ("RowStates", "RowNext", SLOT_ROW)):
        assert set(re.findall(r'"(\w+)"', definition("Vocabulary", states))) == set(declared.states)
        legal = set(re.findall(r'<<"(\w+)", "(\w+)", "(\w+)">>', definition("Vocabulary", table)))
        assert legal == {(triple.trigger, triple.source, triple.dest) for triple in triples(declared.machine())}


def definitions() -> dict[str, str]:
    """Every definition of the protocol's modules by its name."""
    found: dict[str, str] = {}
    for module in ("Vocabulary", "StagingPages", "WriteTasks", "Reads", "SlotOwnership"):
        text = (SPEC / f"{module}.tla").read_text()
        found |= dict(re.findall(r"^(\w+)(?:\([^)]*\))? ==(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL))
    return found


def actions_that_change(*variables: str) -> set[str]:
    """The actions of Next in whose definitions, or in what those use, one of the variables has a prime."""
    texts = definitions()
    assigned = re.compile(rf"\b(?:{'|'.join(variables)})' (?:=|\\in)")

    def changes(name: str) -> bool:
        used = set(re.findall(r"\w+", texts[name])) & texts.keys() - {name}
        return bool(assigned.search(texts[name])) or any(changes(each) for each in used)

    return {name for name in actions_of_next() if changes(name)}


@pytest.mark.parametrize(
    ("declared", "variables"), [(SLOT_ROW, ["status"]), (STAGING_PAGE, ["holders"]), (STEP, ["begun", "steps"])]
)
def test_the_actions_that_move_rows_pages_and_steps_are_the_declared_ones(declared, variables):
    moving = {camel(action) for actions in declared.actions.values() for action in actions}
    assert actions_that_change(*variables) == moving
