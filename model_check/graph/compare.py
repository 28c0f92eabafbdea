"""Both checkers on one graph: what TLC reaches, the in-process checker accepts, with the same states; what TLC has no
edge for, it refuses.

From each state that TLC reaches, the checker is given the events of each of its edges: it must accept them and come to
the state that TLC's edge leads to, as far as both have it, whichever way it came there. Then it is given, in states
evenly spread, events that are told of other edges of the graph and of none from there; what it takes of these is
counted. It may take some: a model's switches and schedules forbid what the rules allow (a save that is tried again),
and some guards of the specification are checked at a later event of the code's.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from palimpsest.trace import Event

from ..manifest import Model
from ..replay.verdict import RejectedError
from .dump import Edge, Graph
from .systems import Checker, System, View, system_of


@dataclass
class Comparison:
    """What was compared, and what differs."""

    model: str
    states: int = 0
    edges: int = 0
    #: edges of which the code logs no event: both stay where they are
    silent: int = 0
    #: what TLC has and the checker refuses, and where the two come to different states
    differences: list[str] = field(default_factory=list)
    #: by action: events given where TLC has no edge of them, and how many of these the checker took
    given: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)

    @property
    def same(self) -> bool:
        """Whether each edge was accepted and led to the same state."""
        return not self.differences


def compare(
    model: Model, graph: Graph, *, system: System | None = None, most: int = 20, foreign: int = 5000
) -> Comparison:
    """Compare the two on `graph`; `most` differences are told. About `foreign` events are given where TLC has no edge,
    in states evenly spread."""
    return _Walk(model, graph, system or system_of(model)).run(most, foreign)


class _Walk:
    """A checker for each state of a graph, in the state that it comes to along the edges."""

    def __init__(self, model: Model, graph: Graph, system: System) -> None:
        self._graph, self._system = graph, system
        self._done = Comparison(model.name, len(graph.states))
        self._machines = {number: system.checker(model, graph.states[number]) for number in graph.initial}
        #: an edge's action and an event of it, by what is one and the same event elsewhere
        self._samples: dict[Hashable, tuple[str, Event]] = {}
        self._possible: dict[str, set[Hashable]] = defaultdict(set)

    def run(self, most: int, foreign: int) -> Comparison:
        """The whole comparison."""
        done = self._done
        for edge in self._graph.breadth_first():
            done.edges += 1
            machine = copy.deepcopy(self._machines[edge.source])
            says = self._step(edge, machine)
            if says and len(done.differences) < most:
                done.differences.append(f"{edge.action}, state {edge.source}: {says}")
            self._machines.setdefault(edge.target, machine)
        self._give_foreign(foreign)
        return done

    def _step(self, edge: Edge, machine: Checker) -> str | None:
        before, after = (self._graph.states[number] for number in (edge.source, edge.target))
        events = self._system.told(edge.action, before, after, machine)
        self._note(edge, events)
        for event in events:
            try:
                machine.take(event)
            except RejectedError as refused:
                return f"refused: {refused.kind} {refused.name}: {refused.says}"
        return next(_differences(*self._system.seen(after, machine)), None)

    def _note(self, edge: Edge, events: Sequence[Event]) -> None:
        self._done.silent += not events
        same = self._system.same_event(edge.action, events)
        self._possible[edge.source].add(same)
        if events:
            self._samples.setdefault(same, (edge.action, events[0]))

    def _give_foreign(self, foreign: int) -> None:
        places = [number for number in self._machines if self._system.settled(self._graph.states[number])]
        for number in places[:: 1 + len(places) * len(self._samples) // foreign]:
            for same, (action, event) in self._samples.items():
                if same not in self._possible[number]:
                    self._done.given[action] += 1
                    self._done.taken[action] += _accepts(self._machines[number], event)


def _accepts(machine: Checker, event: Event) -> bool:
    try:
        copy.deepcopy(machine).take(event)
    except RejectedError:
        return False
    return True


def _differences(spec: View, checker: View) -> Iterator[str]:
    yield from (
        f"{name}: TLC has {spec[name]}, the checker {checker.get(name)}"
        for name in spec
        if spec[name] != checker.get(name)
    )
