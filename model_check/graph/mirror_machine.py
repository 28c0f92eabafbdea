"""The host mirror for a comparison of graphs: models whose streams keep the caller's order, and a checker for one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from palimpsest.trace import Event

from ..manifest import Model
from ..mirror_replay.machine import MirrorMachine
from ..mirror_replay.schema import SYSTEM
from .dump import State
from .variables import Variables

Args = dict[str, Any]
#: request generation, position, step; none where no row is
Row = tuple[int, ...]

#: layers by number, and whether a draft model writes them
LAYERS = ("target", "draft")
#: events of host writes, by the number that the code gives them
EVENTS = ("even", "odd")


def in_callers_order(model: Model) -> Model:
    """The model where streams do what they are given in the order of a host (`models/CallersOrder.tla`)."""
    return replace(
        model,
        module="CallersOrder",
        action_constraints=(*model.action_constraints, "InOrder"),
        invariants=("TypeOK",),
        properties=(),
        deadlock=False,
    )


def ranks_of(state: Variables) -> list[str]:
    """The ranks by their numbers; the one that writes is number 0."""
    return sorted(state.of("pc"), key=lambda rank: (rank != "w", rank))


def asked(state: Variables, step: int) -> Args:
    """What the scheduler asks for in a step; nothing behind the last one."""
    agenda = state["agenda"]
    if 1 <= step <= len(agenda):
        return dict(agenda[step - 1])
    nothing: Args = dict.fromkeys(("copies", "restores", "moves", "rows", "hot", "imports"), ())
    return {**nothing, "given": frozenset(), "deferred": False}


class NamedRows(MirrorMachine):
    """The in-process checker, with the rows that its versions stand for. Marks on streams are passed at once."""

    def __init__(self, config: dict[str, Any], names: dict[int, Row]) -> None:
        super().__init__(config)
        self.names = names
        self.expect(range(config["ranks"]))

    @classmethod
    def of(cls, model: Model, initial: State) -> NamedRows:
        """For the bounds of `model` and the schedule of one of its initial states."""
        state = Variables(initial)
        made = cls(_header(model, state), {})
        made.names |= made._names(state)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> NamedRows:
        made, s = copy.copy(self), self.s
        memo |= {id(each): each for each in (s.config, s.layers)}
        made.s, made.now = copy.deepcopy(s, memo), None
        made.rules = {name: getattr(made, name) for name in self.rules}
        return made

    def take(self, event: Event) -> None:
        """Take one event, and what happens by itself after it."""
        super().take(event)
        for rank in self.s.ranks.values():
            self.pass_marks(rank)

    def _names(self, state: Variables) -> dict[int, Row]:
        s, ranks = self.s, self.s.config["ranks"]
        names: dict[int, Row] = {0: ()}
        for k in range(1, len(state["agenda"]) + 1):
            for x in asked(state, k)["rows"]:
                slot = x["hb"] * self.page_rows + x["off"]
                names |= {s.version(rank, k, slot): (x["gen"], x["pos"], k) for rank in range(ranks)}
            for block, offset, generation, position in asked(state, k)["imports"]:
                names[s.version(ranks, k, block * self.page_rows + offset)] = generation, position, k
        return names


def _header(model: Model, state: Variables) -> dict[str, Any]:
    """What a mirror's trace says first."""
    host, pages = state.of("host"), next(iter(state.of("dev").values()))
    rows = len(next(iter(host.values())))
    layers = [{"name": n, "leader": n == "target", "source": 0, "draft": n == "draft"} for n in LAYERS]
    return {
        "system": SYSTEM, "ranks": len(ranks_of(state)), "observed": True, "eager": bool(model.constants["Eager"]),
        "refines": True, "block_rows": rows, "num_host_blocks": len(host), "num_resident_blocks": len(pages),
        "max_requests": 1, "hot_rows": len(host) * rows, "layers": layers,
    }  # fmt: skip
