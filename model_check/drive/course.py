"""One behavior on its way through the code: the states that it is known to pass, and how far the code went with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..counterexample import Counterexample
from ..manifest import Model
from ..output import Kind, Progress, Result, parse_state
from ..output import Step as Shown
from .behaviors import Behavior, Step
from .drive import DrivenRun, run_once
from .graph import Edge, Graph, Turn
from .telling import spec_name

START = "0"
#: what a counterexample of the code says that it violates
SAME_STATE = "SameState"


class Way:
    """A plan with one edge from each state, which ends at the first edge that the code does not take."""

    def __init__(self, graph: Graph, edges: Iterable[Edge]) -> None:
        self.graph = graph
        self.edges = tuple(edges)
        #: the edge that the code did not take, and what it did
        self.refused: tuple[Edge, str] | None = None
        self._at = START
        self._next = {edge.source: edge for edge in self.edges}

    def next(self, state: str) -> Edge | None:
        """The edge from `state`, unless one was refused."""
        self._at = state
        return self._next.get(state) if self.refused is None else None

    @property
    def path(self) -> Iterator[Edge]:
        """The edges from the state that was asked for last."""
        at = self._at
        while (edge := self._next.get(at)) is not None:
            yield edge
            at = edge.target

    def take(self, edge: Edge) -> None:
        """Nothing is left to be planned."""

    def refuse(self, edge: Edge, why: str) -> None:
        """End the way."""
        self.refused = self.refused or (edge, why)


class Course:
    """A behavior. Where the code chose another step that the specification allows, it goes on from there."""

    def __init__(self, number: int, model: Model, behavior: Behavior) -> None:
        self.number = number
        self.graph = Graph(model.name, model, {START: behavior.first.state}, (START,), whole=False)
        self.run: DrivenRun | None = None
        #: steps that the code did not take, and what it did
        self.stops: list[tuple[Edge, str]] = []
        self._texts = {START: behavior.first.text}
        self._way: list[Edge] = []
        self.go_on(behavior.steps)

    # ---------------------------------------------------------------- how far it is

    @property
    def taken(self) -> tuple[Edge, ...]:
        """The steps that the code has taken."""
        return self.run.taken if self.run is not None else ()

    @property
    def steps(self) -> tuple[Edge, ...]:
        """The steps of the behavior, as far as it is known."""
        return tuple(self._way)

    @property
    def at(self) -> str:
        """The state to which the code has come."""
        return _end(self.taken)

    @property
    def text(self) -> str:
        """That state as TLC writes it."""
        return self._texts[self.at]

    @property
    def left(self) -> Turn | None:
        """Where the code did what the specification may allow or not."""
        return self.run.left if self.run is not None else None

    @property
    def wrong(self) -> str | None:
        """What is not as the specification has it."""
        if self.run is None or self.run.finding is None:
            return None
        return f"behavior {self.number}, step {len(self.taken) + 1}: {self.run.finding}"

    @property
    def over(self) -> bool:
        """Whether the code took the last step, or something is wrong."""
        return self.run is not None and (self.run.finding is not None or self.at == _end(self._way))

    def counterexample(self) -> Counterexample:
        """The steps that the code took, and the next one that it was asked for."""
        taken, coming = self.taken, self._way[: len(self.taken) + 1]
        way = coming if tuple(coming[: len(taken)]) == taken else taken
        told = [(START, "Init", ""), *((edge.target, spec_name(edge.action), edge.thread) for edge in way)]
        steps = tuple(
            Shown(number, action, thread, "", parse_state(self._texts[state]))
            for number, (state, action, thread) in enumerate(told, 1)
        )
        result = Result(Kind.ACTION_PROPERTY, SAME_STATE, Progress(), steps, None, "", (), 0.0, 0)
        return Counterexample.of(f"{self.graph.name}-behavior-{self.number}", result, self.wrong or "")

    # ---------------------------------------------------------------- how it goes on

    def follow(self) -> None:
        """Let the code take the steps, from the first one on."""
        way = Way(self.graph, self._way)
        self.run = run_once(way, START)
        if self.left is None and not self.over:
            self.stops.append(way.refused or (self._way[len(self.taken)], "nothing: the run has ended"))

    def go_on(self, steps: Iterable[Step]) -> None:
        """These are the steps from the state to which the code has come."""
        self._way = list(self.taken)
        for step in steps:
            edge = Edge(self.at if not self._way else self._way[-1].target, step.action, step.thread, self._add(step))
            self.graph.out.setdefault(edge.source, []).append(edge)
            self._way.append(edge)

    def tell(self, turn: Turn, first: str, ways: Iterable[tuple[str, str, Step]]) -> None:
        """All that the specification lets the thread of `turn` do there: (source, target, step), by names, from the
        state `first` on."""
        names = {first: turn.state}
        for source, target, step in ways:
            if target not in names:
                names[target] = self._add(step)
            edge = Edge(names[source], step.action, step.thread, names[target])
            self.graph.out.setdefault(edge.source, []).append(edge)
        self.graph.told.add(turn)

    def _add(self, step: Step) -> str:
        name = str(len(self._texts))
        self.graph.states[name], self._texts[name] = step.state, step.text
        return name


def _end(way: Sequence[Edge]) -> str:
    return way[-1].target if way else START
