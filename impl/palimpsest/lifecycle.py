"""The life cycles of the protocol, each declared once, and the tables compiled from the declarations.

A declaration is data for the `transitions` package, which serves diagrams and the slow oracle of tests. The
hot path uses `Compiled`, integer tables built from the same declaration; a test shows that both agree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import IllegalTransitionError


@dataclass(frozen=True)
class Declaration:
    """A life cycle: its states, the first being initial, and (trigger, source, destination) triples."""

    name: str
    states: tuple[str, ...]
    transitions: tuple[tuple[str, str, str], ...]

    def machine(self, model: Any = None, **options: Any) -> Any:
        """A `transitions.Machine` of this declaration; extra options go to the machine."""
        from transitions import Machine

        return Machine(
            model=model,
            states=list(self.states),
            transitions=[list(triple) for triple in self.transitions],
            initial=self.states[0],
            auto_transitions=False,
            **options,
        )


TASK = Declaration(
    "write task",
    ("PENDING", "QUEUED", "COPYING", "HOST_READY", "WRITTEN", "FAILED"),
    (
        ("queue", "PENDING", "QUEUED"),
        ("claim_copy", "QUEUED", "COPYING"),
        ("host_ready", "COPYING", "HOST_READY"),
        ("complete", "HOST_READY", "WRITTEN"),
        ("fail", "PENDING", "FAILED"),
        ("fail", "QUEUED", "FAILED"),
        ("fail", "COPYING", "FAILED"),
        ("fail", "HOST_READY", "FAILED"),
    ),
)

PAGE = Declaration(
    "staging page",
    ("free", "held"),
    (("claim_page_end", "free", "held"), ("release_last", "held", "free")),
)

STEP = Declaration(
    "step",
    ("begun", "saving", "published", "consumed", "dropped"),
    (
        ("claim_page_end", "begun", "saving"),
        ("retry", "saving", "begun"),
        ("publish", "saving", "published"),
        ("take_step", "published", "consumed"),
        ("discard_step", "published", "consumed"),
        ("begin_step", "begun", "dropped"),
    ),
)

ROW = Declaration(
    "row of a slot",
    ("absent", "in_transit", "committed"),
    (
        ("claim", "absent", "in_transit"),
        ("claim_again", "in_transit", "in_transit"),
        ("claim", "committed", "in_transit"),
        ("commit", "in_transit", "committed"),
        ("lose", "in_transit", "absent"),
        ("lose", "committed", "absent"),
    ),
)

LIFECYCLES = (TASK, PAGE, STEP, ROW)

_CALLBACKS = ("before", "after", "prepare")
_MACHINE_CALLBACKS = (
    "before_state_change", "after_state_change", "prepare_event", "finalize_event", "on_exception", "on_final",
)  # fmt: skip


class Compiled:
    """The tables of a machine: `to[trigger][source]` is a destination, and `legal[source]` all of them.

    States are integers in the order of declaration. Raises `ValueError` for a machine with conditions,
    callbacks, internal transitions or several transitions for a trigger and source: tables cannot say those.
    """

    def __init__(self, machine: Any) -> None:
        _refuse_machine_callbacks(machine)
        self.states: tuple[str, ...] = tuple(machine.states)
        number = {state: index for index, state in enumerate(self.states)}
        self.to: dict[str, tuple[int | None, ...]] = {}
        for trigger, event in machine.events.items():
            found = {source: _only(trigger, source, all_) for source, all_ in event.transitions.items() if all_}
            self.to[trigger] = tuple(number[found[s].dest] if s in found else None for s in self.states)
        self.legal: tuple[frozenset[int], ...] = tuple(
            frozenset(to for row in self.to.values() if (to := row[source]) is not None)
            for source in range(len(self.states))
        )

    def triples(self) -> Iterable[tuple[str, str, str]]:
        """Every (trigger, source, destination)."""
        for trigger, row in self.to.items():
            for source, to in enumerate(row):
                if to is not None:
                    yield trigger, self.states[source], self.states[to]


def _only(trigger: str, source: str, transitions: list[Any]) -> Any:
    if len(transitions) != 1:
        raise ValueError(f"{trigger!r} from {source!r} has {len(transitions)} transitions; a table has one")
    transition = transitions[0]
    if transition.dest is None:
        raise ValueError(f"{trigger!r} from {source!r} is internal; a table has destinations")
    if transition.conditions:
        raise ValueError(f"{trigger!r} from {source!r} has conditions; a table has none")
    if any(getattr(transition, name) for name in _CALLBACKS):
        raise ValueError(f"{trigger!r} from {source!r} has callbacks; a table calls nothing")
    return transition


def _refuse_machine_callbacks(machine: Any) -> None:
    for name in _MACHINE_CALLBACKS:
        if getattr(machine, name, None):
            raise ValueError(f"the machine has {name} callbacks; a table calls nothing")
    for state in machine.states.values():
        if state.on_enter or state.on_exit:
            raise ValueError(f"state {state.name!r} has callbacks; a table calls nothing")


class TaskState(enum.IntEnum):
    """The states of a write task: PENDING, QUEUED, COPYING, HOST_READY, WRITTEN; or FAILED."""

    PENDING = 0
    QUEUED = 1
    COPYING = 2
    HOST_READY = 3
    WRITTEN = 4
    FAILED = 5


# Compiled by hand of the declaration's triples, without `transitions`, which takes 50 ms to import; the
# life cycle test shows that `Compiled(TASK.machine())` says the same.
_NEXT = tuple(
    frozenset(TaskState[to] for _, source, to in TASK.transitions if source == state) for state in TASK.states
)


def advance(state: TaskState, to: TaskState) -> TaskState:
    """`to`, which a write task may enter from `state`. Raises `IllegalTransitionError` otherwise."""
    if to in _NEXT[state]:
        return to
    raise IllegalTransitionError(f"illegal transition {state.name} -> {to.name}")


def tla_table(declaration: Declaration) -> str:
    """The declaration's (source, destination) pairs as a TLA+ set."""
    pairs = dict.fromkeys((source, to) for _, source, to in declaration.transitions)
    return "{" + ", ".join(f'<<"{source}", "{to}">>' for source, to in pairs) + "}"


def mermaid(declaration: Declaration) -> str:
    """A state diagram of the declaration in Mermaid's text form."""
    lines = ["stateDiagram-v2", f"    [*] --> {declaration.states[0]}"]
    lines += [f"    {source} --> {to}: {trigger}" for trigger, source, to in declaration.transitions]
    return "\n".join(lines) + "\n"
