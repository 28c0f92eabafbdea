"""The life cycles of the protocol, each declared once, and the tables compiled from the declarations.

A `Lifecycle` is data. `transitions.Machine` made from it is the slow oracle, a `CompiledLifecycle` is what
the hot path looks up, and `tla_table` is what the specification compares with. `docs/pictures.py` draws the diagrams.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transitions import Machine, State, Transition

from palimpsest.errors import IllegalTransitionError, PalimpsestError

ILLEGAL = 255
"""The entry of `CompiledLifecycle.next` for a trigger that is illegal in a state."""


class InexpressibleError(PalimpsestError, ValueError):
    """A machine says more than a table can; the message names the first such thing."""


class Triple(NamedTuple):
    """One legal transition."""

    trigger: str
    source: str
    dest: str


@dataclass(frozen=True)
class Lifecycle:
    """A declared life cycle: its states in the order of their numbers, and its transitions.

    `actions` names, for each trigger, the actions of `palimpsest.actions` that pull it.
    """

    name: str
    states: tuple[str, ...]
    initial: str
    transitions: tuple[tuple[str, tuple[str, ...], str], ...]
    actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def machine(self, model: object | None = None) -> Machine:
        """A `transitions.Machine` that drives `model` (default: itself).

        Raises `InexpressibleError` when the model has an attribute with a trigger's name, since
        `transitions` would then leave the trigger out with no more than a warning.
        """
        for trigger, _, _ in self.transitions:
            if model is not None and hasattr(model, trigger):
                raise InexpressibleError(f"{self.name}: the model has an attribute {trigger!r} already")
        return Machine(
            model="self" if model is None else model,
            name=self.name,
            states=list(self.states),
            initial=self.initial,
            transitions=[[trigger, list(sources), dest] for trigger, sources, dest in self.transitions],
            auto_transitions=False,
            ignore_invalid_triggers=False,
        )


class TaskState(enum.IntEnum):
    """The life cycle of a write task; the value is the state's number in the compiled table.

    0 PENDING, 1 QUEUED, 2 COPYING, 3 HOST_READY, 4 WRITTEN (final); 5 FAILED (final) from any that is not.
    """

    PENDING = 0
    QUEUED = 1
    COPYING = 2
    HOST_READY = 3
    WRITTEN = 4
    FAILED = 5


WRITE_TASK = Lifecycle(
    name="WriteTask",
    states=tuple(TaskState.__members__),
    initial="PENDING",
    transitions=(
        ("queue", ("PENDING",), "QUEUED"),
        ("claim_copy", ("QUEUED",), "COPYING"),
        ("host_ready", ("COPYING",), "HOST_READY"),
        ("complete", ("HOST_READY",), "WRITTEN"),
        ("fail", ("PENDING", "QUEUED", "COPYING", "HOST_READY"), "FAILED"),
    ),
    actions={
        "queue": ("publish", "escalate"),
        "claim_copy": ("claim_copy",),
        "host_ready": ("host_ready",),
        "complete": ("complete",),
        "fail": ("fail",),
    },
)

# A holder that leaves pulls `release`, the last one `release_last`: two triggers, because a table has one
# destination per trigger and state.
STAGING_PAGE = Lifecycle(
    name="StagingPage",
    states=("FREE", "HELD"),
    initial="FREE",
    transitions=(
        ("claim_page", ("FREE",), "HELD"),
        ("bind", ("HELD",), "HELD"),
        ("release", ("HELD",), "HELD"),
        ("release_last", ("HELD",), "FREE"),
    ),
    actions={
        "claim_page": ("claim_page_end",),
        "bind": ("publish",),
        "release": ("release_page",),
        "release_last": ("release_page",),
    },
)

# A step that is begun and never published (an idle step, a retry) is dropped by the next one.
STEP = Lifecycle(
    name="Step",
    states=("BEGUN", "PUBLISHED", "TAKEN", "DISCARDED", "DROPPED"),
    initial="BEGUN",
    transitions=(
        ("publish", ("BEGUN",), "PUBLISHED"),
        ("take", ("PUBLISHED",), "TAKEN"),
        ("discard", ("PUBLISHED",), "DISCARDED"),
        ("drop", ("BEGUN",), "DROPPED"),
    ),
    actions={
        "publish": ("publish",),
        "take": ("take_step",),
        "discard": ("discard_step", "shutdown_end"),
        "drop": ("begin_step", "shutdown_end"),
    },
)

# Of one (slot, key). A slot that changes its tenant loses the rows of every key, whatever their state.
SLOT_ROW = Lifecycle(
    name="SlotRow",
    states=("ABSENT", "IN_TRANSIT", "COMMITTED"),
    initial="ABSENT",
    transitions=(
        ("claim", ("ABSENT", "IN_TRANSIT", "COMMITTED"), "IN_TRANSIT"),
        ("commit", ("IN_TRANSIT",), "COMMITTED"),
        ("retenant", ("ABSENT", "IN_TRANSIT", "COMMITTED"), "ABSENT"),
        ("reset", ("ABSENT", "IN_TRANSIT", "COMMITTED"), "ABSENT"),
    ),
    actions={
        "claim": ("publish",),
        "commit": ("drain",),
        "retenant": ("begin_step", "publish"),
        "reset": ("reset",),
    },
)

LIFECYCLES = (WRITE_TASK, STAGING_PAGE, STEP, SLOT_ROW)


@dataclass(frozen=True)
class CompiledLifecycle:
    """A life cycle as tables over state numbers.

    `allowed[source][dest]` is whether some trigger leads there; `next[trigger][source]` is the number of
    the state that follows, or `ILLEGAL`.
    """

    name: str
    states: tuple[str, ...]
    initial: int
    allowed: tuple[tuple[bool, ...], ...]
    next: Mapping[str, bytes]

    @classmethod
    def compile(cls, machine: Machine) -> CompiledLifecycle:
        """The tables of `machine`. Raises `InexpressibleError` for whatever a table cannot say: guards,
        callbacks, ambiguous sources, internal transitions, ignored triggers, automatic transitions."""
        _refuse_machine(machine)
        states = tuple(machine.states)
        if not 0 < len(states) < ILLEGAL:
            raise InexpressibleError(f"{_name(machine)}: {len(states)} states, and a table holds {ILLEGAL - 1}")
        number = {state: index for index, state in enumerate(states)}
        rows = {trigger: bytearray([ILLEGAL]) * len(states) for trigger in machine.events}
        for trigger, source, dest in triples(machine):
            rows[trigger][number[source]] = number[dest]
        frozen = {trigger: bytes(row) for trigger, row in rows.items()}
        return cls(_name(machine), states, number[str(machine.initial)], _allowed(frozen, len(states)), frozen)

    def fire(self, trigger: str, state: int) -> int:
        """The number of the state after `trigger`. Raises `IllegalTransitionError`."""
        row = self.next.get(trigger)
        after = ILLEGAL if row is None else row[state]
        if after == ILLEGAL:
            raise IllegalTransitionError(f"illegal trigger {trigger} of {self.name} in {self.states[state]}")
        return after

    def fire_all(self, trigger: str, states: bytearray) -> bytearray:
        """The numbers of the states after `trigger`, of many at once. Raises `IllegalTransitionError` for the
        first of them in which it is illegal."""
        after = states.translate(self._wide[trigger])
        if ILLEGAL in after:
            self.fire(trigger, states[after.index(ILLEGAL)])
        return after

    @functools.cached_property
    def _wide(self) -> Mapping[str, bytes]:
        """`next`, with an entry for every byte."""
        return {trigger: row.ljust(256, bytes([ILLEGAL])) for trigger, row in self.next.items()}

    def is_final(self, state: int) -> bool:
        """Whether no trigger is legal in `state`."""
        return not any(self.allowed[state])


def triples(machine: Machine) -> Iterator[Triple]:
    """Every legal (trigger, source, destination) of a machine that a table can express, in declared order."""
    for trigger, event in machine.events.items():
        for source, found in event.transitions.items():
            if found:
                yield Triple(trigger, source, _only(machine, trigger, source, found))


def tla_table(machine: Machine, name: str = "Legal") -> str:
    """TLA+ text that defines `name` as the set of legal triples <<trigger, source, destination>>."""
    rows = [f'<<"{trigger}", "{source}", "{dest}">>' for trigger, source, dest in triples(machine)]
    return f"{name} ==\n    {{ " + ",\n      ".join(rows) + " }\n"


def _allowed(rows: Mapping[str, bytes], size: int) -> tuple[tuple[bool, ...], ...]:
    reached = [{row[source] for row in rows.values()} for source in range(size)]
    return tuple(tuple(dest in reached[source] for dest in range(size)) for source in range(size))


def _name(machine: Machine) -> str:
    return str(machine.name).removesuffix(": ") or "machine"


# What the machine, a state and a transition may carry that a table has no place for.
_MACHINE_CALLBACKS = (
    "prepare_event",
    "before_state_change",
    "after_state_change",
    "finalize_event",
    "on_exception",
    "on_final",
)
_STATE_CALLBACKS = ("on_enter", "on_exit")
_TRANSITION_CALLBACKS = ("prepare", "before", "after")


def _refuse_machine(machine: Machine) -> None:
    if type(machine) is not Machine:
        raise InexpressibleError(f"only a plain Machine can be compiled, not {type(machine).__name__}")
    where = _name(machine)
    _refuse_any(where, machine, _MACHINE_CALLBACKS)
    if machine.auto_transitions:
        raise InexpressibleError(f"{where}: auto_transitions lead to every state from everywhere")
    if machine.ignore_invalid_triggers:
        raise InexpressibleError(f"{where}: ignore_invalid_triggers, and a table raises")
    if machine.initial is None:
        raise InexpressibleError(f"{where}: no initial state")
    for state in machine.states.values():
        _refuse_state(where, state)


def _refuse_state(where: str, state: State) -> None:
    at = f"{where}, state {state.name}"
    if type(state) is not State:
        raise InexpressibleError(f"{at}: only a plain State can be compiled, not {type(state).__name__}")
    if not isinstance(state._name, str):
        raise InexpressibleError(f"{at}: states are named by strings, not by {type(state._name).__name__}")
    if state.ignore_invalid_triggers:
        raise InexpressibleError(f"{at}: ignore_invalid_triggers, and a table raises")
    _refuse_any(at, state, _STATE_CALLBACKS)


def _refuse_any(where: str, owner: object, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(owner, name):
            raise InexpressibleError(f"{where}: {name} callbacks, and a table calls nothing")


def _only(machine: Machine, trigger: str, source: str, found: list[Any]) -> str:
    """The destination of the one transition that `trigger` may take from `source`."""
    at = f"{_name(machine)}, {trigger} from {source}"
    if len(found) != 1:
        raise InexpressibleError(f"{at}: {len(found)} transitions, and a table holds one")
    transition = found[0]
    if type(transition) is not Transition:
        kind = type(transition).__name__
        raise InexpressibleError(f"{at}: only a plain Transition can be compiled, not {kind}")
    if transition.conditions:
        kind = "conditions" if transition.conditions[0].target else "unless"
        raise InexpressibleError(f"{at}: {kind}, and a table has no guards")
    _refuse_any(at, transition, _TRANSITION_CALLBACKS)
    if transition.dest is None:
        raise InexpressibleError(f"{at}: an internal transition; name the state itself as its destination")
    return str(transition.dest)


COMPILED: dict[str, CompiledLifecycle] = {
    lifecycle.name: CompiledLifecycle.compile(lifecycle.machine()) for lifecycle in LIFECYCLES
}

TASKS = COMPILED[WRITE_TASK.name]


def advance(state: TaskState, to: TaskState) -> TaskState:
    """`to`, when a write task may go there from `state`. Raises `IllegalTransitionError`."""
    if TASKS.allowed[state][to]:
        return to
    raise IllegalTransitionError(f"illegal transition {state.name} -> {to.name}")
