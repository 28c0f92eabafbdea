"""The declared life cycles: their tables say what `transitions` says, and refuse what they cannot say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from transitions import Machine, MachineError, State
from transitions.extensions import LockedMachine

from palimpsest import lifecycle as lifecycle_module
from palimpsest.actions import ACTIONS
from palimpsest.errors import IllegalTransitionError, PalimpsestError, PrefixCacheError
from palimpsest.lifecycle import (
    COMPILED,
    ILLEGAL,
    LIFECYCLES,
    WRITE_TASK,
    CompiledLifecycle,
    InexpressibleError,
    Lifecycle,
    TaskState,
    advance,
    tla_table,
    triples,
)

EVERY = pytest.mark.parametrize("lifecycle", LIFECYCLES, ids=lambda lifecycle: lifecycle.name)


def oracle_fires(lifecycle: Lifecycle, state: str, trigger: str) -> str | None:
    """The state that `transitions` goes to, or None when it refuses."""
    model = SimpleNamespace()
    lifecycle.machine(model).set_state(state)
    try:
        assert model.trigger(trigger)
    except MachineError:
        return None
    return model.state


@EVERY
def test_table_and_machine_agree_on_every_state_and_trigger(lifecycle):
    compiled = COMPILED[lifecycle.name]
    for number, state in enumerate(lifecycle.states):
        for trigger in dict.fromkeys(trigger for trigger, _, _ in lifecycle.transitions):
            want = oracle_fires(lifecycle, state, trigger)
            after = compiled.next[trigger][number]
            assert (None if after == ILLEGAL else compiled.states[after]) == want
            if want is None:
                with pytest.raises(IllegalTransitionError, match=f"illegal trigger {trigger} of .* in {state}"):
                    compiled.fire(trigger, number)
            else:
                assert compiled.states[compiled.fire(trigger, number)] == want


@EVERY
def test_allowed_is_what_some_trigger_reaches(lifecycle):
    compiled = COMPILED[lifecycle.name]
    legal = {(source, dest) for _, source, dest in triples(lifecycle.machine())}
    for source, row in zip(compiled.states, compiled.allowed, strict=True):
        found = {dest for dest, allowed in zip(compiled.states, row, strict=True) if allowed}
        assert found == {dest for start, dest in legal if start == source}
    assert compiled.states[compiled.initial] == lifecycle.initial


@EVERY
def test_every_state_can_be_reached(lifecycle):
    reached = {lifecycle.initial}
    for _ in lifecycle.states:
        reached |= {dest for _, source, dest in triples(lifecycle.machine()) if source in reached}
    assert reached == set(lifecycle.states)


@EVERY
def test_every_trigger_is_pulled_by_registered_actions(lifecycle):
    assert set(lifecycle.actions) == {trigger for trigger, _, _ in lifecycle.transitions}
    for actions in lifecycle.actions.values():
        assert actions
        assert set(actions) <= set(ACTIONS)


def test_task_states_are_the_compiled_numbers():
    compiled = COMPILED[WRITE_TASK.name]
    assert [state.name for state in TaskState] == list(compiled.states)
    assert [int(state) for state in TaskState] == list(range(len(compiled.states)))
    assert [state.name for state in TaskState if compiled.is_final(state)] == ["WRITTEN", "FAILED"]


@pytest.mark.parametrize("to", TaskState)
@pytest.mark.parametrize("state", TaskState)
def test_advance_allows_what_some_trigger_does(state, to):
    if any((source, dest) == (state.name, to.name) for _, source, dest in triples(WRITE_TASK.machine())):
        assert advance(state, to) is to
    else:
        with pytest.raises(PrefixCacheError, match=f"illegal transition {state.name} -> {to.name}"):
            advance(state, to)


def test_advance_is_a_table_lookup_and_asks_no_machine(monkeypatch):
    monkeypatch.setattr(Machine, "__init__", lambda *_, **__: pytest.fail("a machine was made"))
    monkeypatch.setattr(Machine, "events", property(lambda _: pytest.fail("a machine was asked")), raising=False)
    assert advance(TaskState.PENDING, TaskState.QUEUED) is TaskState.QUEUED


def test_triggers_of_a_life_cycle_must_be_free_on_the_model():
    with pytest.raises(InexpressibleError, match="attribute 'queue'"):
        WRITE_TASK.machine(SimpleNamespace(queue=None))


# ---------------------------------------------------------------- what a table cannot express


def machine(transitions=(("go", "a", "b"),), states=("a", "b"), **options):
    options = {"initial": "a", "auto_transitions": False, **options}
    rows = [row if isinstance(row, dict) else list(row) for row in transitions]
    return Machine(model=SimpleNamespace(), states=list(states), transitions=rows, **options)


def go(**options):
    return {"trigger": "go", "source": "a", "dest": "b", **options}


def called(*args, **kwargs):
    return True


def test_a_plain_machine_compiles():
    compiled = CompiledLifecycle.compile(machine([("go", "a", "b"), ("stay", "*", "="), ("back", "b", "a")]))
    assert compiled.next == {"go": bytes([1, ILLEGAL]), "stay": bytes([0, 1]), "back": bytes([ILLEGAL, 0])}


REFUSED = {
    "conditions": lambda: machine([go(conditions=called)]),
    "unless": lambda: machine([go(unless=called)]),
    "prepare callbacks": lambda: machine([go(prepare=called)]),
    "before callbacks": lambda: machine([go(before=called)]),
    "after callbacks": lambda: machine([go(after=called)]),
    "on_enter callbacks": lambda: machine(states=["a", State("b", on_enter=called)]),
    "on_exit callbacks": lambda: machine(states=[State("a", on_exit=called), "b"]),
    "prepare_event callbacks": lambda: machine(prepare_event=called),
    "before_state_change callbacks": lambda: machine(before_state_change=called),
    "after_state_change callbacks": lambda: machine(after_state_change=called),
    "finalize_event callbacks": lambda: machine(finalize_event=called),
    "on_exception callbacks": lambda: machine(on_exception=called),
    "on_final callbacks": lambda: machine(on_final=called),
    "2 transitions": lambda: machine([("go", "a", "b"), ("go", "a", "a")]),
    "internal transition": lambda: machine([("go", "a", None)]),
    "auto_transitions": lambda: machine(auto_transitions=True),
    "machine: ignore_invalid_triggers": lambda: machine(ignore_invalid_triggers=True),
    "state a: ignore_invalid_triggers": lambda: machine(states=[State("a", ignore_invalid_triggers=True), "b"]),
    "no initial state": lambda: Machine(model=None, states=["a"], initial=None, auto_transitions=False),
    "named by strings": lambda: machine(
        states=TaskState, initial=TaskState.PENDING, transitions=[("go", "PENDING", "QUEUED")]
    ),
    "300 states": lambda: machine(states=[f"s{number}" for number in range(300)], initial="s0", transitions=[]),
    "not LockedMachine": lambda: LockedMachine(states=["a"], initial="a", auto_transitions=False),
    "plain State": lambda: machine(states=["a", type("Tagged", (State,), {})("b")]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_compile_refuses(why):
    with pytest.raises(InexpressibleError, match=why) as refused:
        CompiledLifecycle.compile(REFUSED[why]())
    assert isinstance(refused.value, PalimpsestError)


def test_compile_refuses_callbacks_found_on_the_model():
    class Model:
        def on_enter_b(self):
            """`transitions` binds this by its name alone."""

    made = Machine(
        model=Model(), states=["a", "b"], transitions=[["go", "a", "b"]], initial="a", auto_transitions=False
    )
    with pytest.raises(InexpressibleError, match="on_enter"):
        CompiledLifecycle.compile(made)


# ---------------------------------------------------------------- what comes of a declaration


def test_tla_table_lists_the_legal_triples():
    text = tla_table(WRITE_TASK.machine(), "TaskLegal")
    assert text.startswith("TaskLegal ==\n")
    assert '<<"queue", "PENDING", "QUEUED">>' in text
    assert text.count("<<") == sum(1 for _ in triples(WRITE_TASK.machine())) == 8


def test_import_brings_in_neither_graphs_nor_torch():
    code = (
        "import sys, palimpsest.lifecycle; print([name for name in sys.modules if name.split('.')[0] in "
        "('torch', 'numpy', 'graphviz', 'pygraphviz') or name.startswith('transitions.extensions')])"
    )
    path = str(Path(lifecycle_module.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert found.stdout.strip() == "[]"
