"""One action, one function, one critical section, one event: under one name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import palimpsest.prefix_cache
from palimpsest.actions import ACTIONS, action

PACKAGE = Path(palimpsest.prefix_cache.__file__).parent
#: what the body of an action's function holds, by the lock that the registry names
LOCKS = {
    "state": {"self._state_lock", "self._lock"},
    "task": {"self._lock", "self._work", "self._controller.lock"},
    "page": {"self._lock", "self._freed"},
    None: set(),
}
OWN = {name: entry for name, entry in ACTIONS.items() if not entry.environment}


def functions() -> dict[str, list[ast.FunctionDef]]:
    """The functions that carry each action's mark."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "action":
                    found.setdefault(ast.literal_eval(mark.args[0]), []).append(node)
    return found


def emitted(function: ast.AST) -> list[str]:
    """The names of the events that a piece of code emits."""
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "emit"
    ]


def test_every_action_of_the_registry_has_one_function_of_its_own_name():
    found = functions()
    assert set(OWN) <= set(found) <= set(ACTIONS)
    assert {name: [function.name for function in marked] for name, marked in found.items()} == {n: [n] for n in found}


@pytest.mark.parametrize("name", OWN)
def test_the_event_of_an_action_is_emitted_once_inside_the_critical_section_that_the_registry_names(name):
    (function,) = functions()[name]
    locks = LOCKS[OWN[name].lock]
    sections = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.With) and any(ast.unparse(item.context_expr) in locks for item in node.items)
    ]
    if not locks:
        assert emitted(function).count(name) == 1
        return
    assert sections, f"{name} has no critical section under {locks}"
    assert [event for event in emitted(sections[0]) if event == name] == [name]
    assert emitted(function).count(name) == 1


def test_no_event_is_emitted_outside_the_function_of_its_action():
    inside = [event for (function,) in functions().values() for event in emitted(function)]
    everywhere = [event for path in PACKAGE.glob("*.py") for event in emitted(ast.parse(path.read_text()))]
    assert sorted(everywhere) == sorted(inside)
    assert set(everywhere) <= set(ACTIONS)


def test_an_unknown_action_cannot_be_marked():
    with pytest.raises(KeyError):
        action("dance")
