"""The two systems of which TLC's graph is compared with the in-process checker's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palimpsest.trace import Event

from ..errors import CheckError
from ..manifest import Model
from . import cache_views, mirror_views, telling
from .dump import State
from .mirror_machine import NamedRows, in_callers_order
from .mirror_telling import told as told_of_mirror

View = dict[str, Any]


class Checker(Protocol):
    """An in-process checker."""

    def take(self, event: Event) -> None:
        """Take one event. Raises `RejectedError` when the specification does not allow it."""


@dataclass(frozen=True)
class System:
    """How a system's specification and its in-process checker are compared."""

    #: whether a model has such a comparison
    fits: Callable[[Model], bool]
    #: models of at most so many states are compared where none is named
    small_states: int
    #: the model that TLC dumps the graph of
    dumped: Callable[[Model], Model]
    #: a checker in an initial state
    checker: Callable[[Model, State], Any]
    #: the events that the code would log of a step
    told: Callable[[str, State, State, Any], list[Event]]
    #: a state as TLC has it and as the checker has it, as far as both have it
    seen: Callable[[State, Any], tuple[View, View]]
    #: whether the checker has this state; else it stands where the silent steps that follow lead to
    settled: Callable[[State], bool]
    #: what is equal for edges with the same label
    same_event: Callable[[str, Sequence[Event]], Hashable]


def config_of(model: Model) -> dict[str, Any]:
    """What a trace of the cache says first, for the bounds of `model`: blocks of one slot, a byte a row."""
    slots, pages = str(model.constants["Slots"]), str(model.constants["Pages"])
    return {
        "num_blocks": slots.count(",") + 1,
        "block_size": 1,
        "pages": pages.count(",") + 1,
        "budget_bytes": model.constants["Budget"],
        "eager": False,
    }


def _seen_of_cache(state: State, machine: telling.Numbered) -> tuple[View, View]:
    return cache_views.seen_by_tlc(state), cache_views.seen_by_checker(machine)


def _seen_of_mirror(state: State, machine: NamedRows) -> tuple[View, View]:
    if not mirror_views.settled(state):
        return {}, {}
    return mirror_views.seen_by_tlc(state), mirror_views.seen_by_checker(machine)


def _is(model: Model, module: str) -> bool:
    return model.kind == "model" and model.module == module and model.specification == "RestSpec"


#: An event of the cache is the same as another one of its action: what it says depends on the state, and is refused.
PREFIX_CACHE = System(
    fits=lambda model: _is(model, "Cases") and model.constants.get("Blocks") == "<- Single",
    small_states=2000,
    dumped=lambda model: model,
    checker=lambda model, _: telling.Numbered(config_of(model)),
    told=telling.told,
    seen=_seen_of_cache,
    settled=lambda _: True,
    same_event=lambda action, _: action,
)
#: An event of the mirror is the same as one that says the same: of each state, each event of the graph is tried.
HOST_MIRROR = System(
    fits=lambda model: _is(model, "MirrorCases"),
    small_states=6000,  # few of them are in the order of a host
    dumped=in_callers_order,
    checker=NamedRows.of,
    told=told_of_mirror,
    seen=_seen_of_mirror,
    settled=mirror_views.settled,
    same_event=lambda action, events: repr((action, *(each.args for each in events), *(each.post for each in events))),
)
SYSTEMS = (PREFIX_CACHE, HOST_MIRROR)


def system_of(model: Model) -> System:
    """The system that `model` is of. Raises `CheckError` for one whose graph is not compared."""
    for system in SYSTEMS:
        if system.fits(model):
            return system
    raise CheckError(
        f"the in-process checker has no state graph for {model.name}: it has one for models of the prefix cache with "
        "blocks of one slot, and of the host mirror, without fairness"
    )
