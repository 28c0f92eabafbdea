"""Which edges of a graph the code has taken, which it would not take, and which to ask of it next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from .graph import Edge, Graph

#: how often an edge is asked for that the code did not take, each time after other steps
ASKED = 2


class Coverage:
    """The edges of one graph. Each run goes from an initial state to edges that no run has taken yet."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.driven: Counter[Edge] = Counter()
        #: edges that the code did not take, and why, the last time that it was asked
        self.refused: dict[Edge, str] = {}
        self._asked: Counter[Edge] = Counter()
        #: refused in this run
        self._here: set[Edge] = set()
        self._path: deque[Edge] = deque()

    @property
    def never(self) -> dict[Edge, str]:
        """The edges that the code was asked for and never took, and why."""
        return {edge: why for edge, why in self.refused.items() if edge not in self.driven}

    @property
    def settled(self) -> int:
        """How many edges were taken or refused by now."""
        return len(self.driven.keys() | self.refused.keys())

    def unasked(self) -> list[Edge]:
        """The edges that no run came to."""
        return [edge for edge in self.graph.edges if edge not in self.driven and edge not in self.refused]

    def start(self) -> str | None:
        """The initial state of a new run; None when there is nothing left to ask for."""
        self._here.clear()
        self._path = self._way(self.graph.initial)
        return self._path[0].source if self._path else None

    def next(self, state: str) -> Edge | None:
        """The edge to take now; None where no edge is left that can be asked for."""
        if not self._path or self._path[0].source != state or self._path[0] in self._here:
            self._path = self._way([state])
        return self._path[0] if self._path else None

    @property
    def path(self) -> Iterable[Edge]:
        """What is planned from here on."""
        return self._path

    def take(self, edge: Edge) -> None:
        """The code has taken an edge."""
        self.driven[edge] += 1
        if self._path and self._path[0] == edge:
            self._path.popleft()

    def refuse(self, edge: Edge, why: str) -> None:
        """The code does not take an edge here."""
        self.refused[edge] = why
        self._asked[edge] += 1
        self._here.add(edge)

    def _wanted(self, edge: Edge) -> bool:
        return edge not in self.driven and edge not in self._here and self._asked[edge] < ASKED

    def _open(self, edge: Edge) -> bool:
        return edge not in self._here and self._asked[edge] <= self.driven[edge]

    def _way(self, states: Iterable[str]) -> deque[Edge]:
        """The shortest way from one of `states` to an edge that is wanted, that edge included."""
        came: dict[str, Edge | None] = dict.fromkeys(states)
        todo = deque(came)
        while todo:
            state = todo.popleft()
            for edge in self.graph.out.get(state, ()):
                if self._wanted(edge):
                    return self._back(came, edge)
                if edge.target not in came and self._open(edge):
                    came[edge.target] = edge
                    todo.append(edge.target)
        return deque()

    def _back(self, came: dict[str, Edge | None], last: Edge) -> deque[Edge]:
        path = deque([last])
        while (edge := came[path[0].source]) is not None:
            path.appendleft(edge)
        return path
