"""Where a run is in the graph: each action that the code does is an edge from there, and leaves the state that the edge
leads to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from palimpsest.prefix_cache.controller import COMMITTER_NAME
from palimpsest.prefix_cache.state import PREFETCH_NAME

from ..explore.finding import Finding
from ..explore.scheduler import STATE_LOCK, Scheduler
from ..explore.threads import Thread
from .edges import known_difference, only_runs_out
from .graph import Edge, Plan, Turn
from .spec_state import Identity, State, View, differing

if TYPE_CHECKING:
    from .code_state import CodeState

#: what the code does without an event where it finds nothing to do, or raises; rows that were preserved since the fetch
#: began are not read any more
SILENT = frozenset({"drain", "escalate", "drop_read", "join_begin", "join_end", "claim_page_end", "release_page"})
#: of these, what a call may end with
_RAISES = SILENT - {"join_begin", "escalate"}
UNSEEN = SILENT | {"row_gathered"}
#: so many of these may lie before an action
MOST_UNSEEN = 2
_ROLES = {PREFETCH_NAME: "prefetch", COMMITTER_NAME: "committer"}


class Place:
    """The place of one run in a graph. `scheduler` runs the threads whose actions it is told of."""

    def __init__(self, scheduler: Scheduler, plan: Plan, start: str) -> None:
        self.scheduler = scheduler
        self._plan, self._at = plan, start
        self.code: CodeState
        self.taken: list[Edge] = []
        #: errors that calls ended with, by thread
        self.errors: Counter[str] = Counter()
        #: events of each thread; of those, drains
        self._events: Counter[str] = Counter()
        self.drains = 0
        #: where the code did what the graph does not tell of
        self.left: Turn | None = None
        #: threads of which a wait has run out, until their calls end
        self._ran_out: set[str] = set()
        self._acted: Thread | None = None
        self._ended = False

    def begin(self, code: CodeState) -> None:
        """Compare the cache as it was made with the initial state."""
        self.code = code
        if wrong := differing(self.state.view, code.view()):
            self._find("before the first action", wrong)

    @property
    def state(self) -> State:
        """The specification's state now."""
        return self._plan.graph.states[self._at]

    @property
    def expected(self) -> Edge | None:
        """The edge that is asked for."""
        return self._plan.next(self._at)

    def ahead(self) -> State:
        """The state that the expected edge leads to."""
        assert self.expected is not None
        return self._plan.graph.states[self.expected.target]

    # ---------------------------------------------------------------- what the threads do

    def events_here(self) -> int:
        """How many events the calling thread has logged."""
        me = self.scheduler.current
        return self._events[me.name] if me is not None else 0

    def logged(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """An event: the code has done an action."""
        me = self.scheduler.current
        if me is None or action == "copy_lands":  # what a device does is seen later, by whoever waits for it
            return
        self._events[me.name] += 1
        if action == "drain":
            self.drains += 1
            if not (post["written"] or post["failed"]):
                self.happened(action)
                return
        self.code.note(action, args)
        self._must_match(action)

    def happened(self, action: str) -> None:
        """Something of which the code logs no event."""
        edge, me = self.expected, self.scheduler.current
        if me is None:
            return
        if action not in SILENT or (edge is not None and (edge.action, edge.thread) == (action, role_of(me))):
            self._must_match(action)

    def gathered(self, slot: int, row: Identity) -> None:
        """A row was read off the pool: by a reader, or to preserve it."""
        me = self.scheduler.current
        if me is None or (STATE_LOCK, me.name) in self.scheduler.held():
            return
        role = role_of(me)
        for edge in self._edges(self._at, "row_gathered", role):
            reader, ahead = self.state["rdr"][role], self._plan.graph.states[edge.target]["rdr"][role]["buf"]
            at = next(i for i, old in enumerate(reader["buf"]) if old != ahead[i])
            if self.state.of("reads")[reader["hit"]]["slots"][at] == slot:
                if ahead[at] not in (row, (0, 0, "garbage")):
                    self._find(str(edge), [f"{role} reads {row}, and {ahead[at]} in the specification"])
                self._advance([edge])
                return
        self._leaves(Turn(self._at, "row_gathered", role))

    def delivered(self, hit: tuple[int, str, str], rows: list[Identity]) -> None:
        """Rows of a hit were delivered: the specification's read got the same."""
        if not rows:
            return
        read = self.state.of("reads")[hit]
        got = [row if row[2] != "absent" else (0, 0, "key 0") for row in read["got"]]
        if read["st"] != "done" or got != rows:
            self._find(
                f"hit {hit}", [f"{rows} are delivered, and {got} in the specification, where it is {read['st']}"]
            )

    def ended(self, role: str, asked: Edge | None, error: BaseException | None) -> None:
        """The call of a thread that was to take an edge has ended; it cannot any more if it has not."""
        if error is not None:
            self.errors[f"{role}: {type(error).__name__}"] += 1
        edge = self.expected
        if role in self._ran_out:  # which is what it raises of
            self._ran_out.remove(role)
        elif edge is None or edge.thread != role:
            return
        elif error is not None and edge.action in _RAISES and self.ahead().view == self.code.view():
            self._advance([edge])
        elif edge == asked:
            how = "ends" if error is None else f"raises {type(error).__name__}"
            self._plan.refuse(edge, f"the {role}'s call {how} without it")

    # ---------------------------------------------------------------- edges

    def _edges(self, state: str, action: str, role: str) -> Iterator[Edge]:
        """The edges of an action of a thread, the expected one first."""
        edge = self.expected if state == self._at else None
        out = self._plan.graph.out.get(state, [])
        yield from sorted((e for e in out if (e.action, e.thread) == (action, role)), key=lambda e: e != edge)

    def _must_match(self, action: str) -> None:
        me = self.scheduler.current
        assert me is not None
        if self.scheduler.finding is not None or self._ended:
            return
        role, view = role_of(me), self.code.view()
        path = self._matching(action, role, view)
        if path:
            edge = self.expected
            if edge is not None and edge not in path:
                self._plan.refuse(edge, self._instead(edge, action, role))
            self._advance(path)
            return
        self._mismatch(action, role, view)

    def _matching(self, action: str, role: str, view: View) -> list[Edge]:
        """The edge of an action that leads to the state of the cache, behind steps of the same thread that leave no
        event."""
        ways: list[tuple[str, list[Edge]]] = [(self._at, [])]
        for state, before in ways:
            for edge in self._edges(state, action, role):
                if self._state(edge.target).view == view and not self._late(edge):
                    return [*before, edge]
            here = self._state(state).view
            if len(before) < MOST_UNSEEN:
                ways += [
                    (edge.target, [*before, edge])
                    for edge in self._plan.graph.out.get(state, [])
                    if edge.thread == role and edge.action in UNSEEN
                    and self._state(edge.target).view == here
                ]  # fmt: skip
        return []

    def _late(self, edge: Edge) -> bool:
        return only_runs_out(edge, self._state(edge.source), self._state(edge.target))

    def _state(self, name: str) -> State:
        return self._plan.graph.states[name]

    def _instead(self, edge: Edge, action: str, role: str) -> str:
        if edge.action == action and edge.thread == role:
            return f"the {role} chooses another {action}"
        return f"the {role} does {action}" + (" first" if edge.thread == role else " at once")

    def _mismatch(self, action: str, role: str, view: View) -> None:
        edges = list(self._edges(self._at, action, role))
        if known := known_difference(action, role, self.state):
            self._end([*edges[:1], self.expected], known)
        elif self._leaves(Turn(self._at, action, role)):
            return
        elif edges:
            wrong = differing(self._plan.graph.states[edges[0].target].view, view)
            self._find(f"after {action} ({role})", wrong or ["its wait is over, and cannot be in the specification"])
        else:
            pcs = {name: self.state[name]["pc"] for name in ("eng", "bld")}
            self._find(f"{action} ({role})", [f"the specification does not allow it here: {pcs}"])

    def _leaves(self, turn: Turn) -> bool:
        """Whether the code leaves what the graph tells of: whether it may is for TLC to say, unless this is behind the
        last edge of the plan."""
        if self._plan.graph.tells(turn):
            return False
        self.left, self._ended = turn if self.expected is not None else None, True
        return True

    def _end(self, edges: Iterable[Edge | None], why: str) -> None:
        """The run cannot go on: code and specification are at different places."""
        for edge in dict.fromkeys(edges):
            if edge is not None:
                self._plan.refuse(edge, why)
        self._ended = True

    def _find(self, where: str, wrong: list[str]) -> None:
        self.scheduler.find(Finding("post-state", f"{where}: {'; '.join(wrong[:6])}", ()))

    def _advance(self, edges: list[Edge]) -> None:
        for edge in edges:
            self._plan.take(edge)
            self.taken.append(edge)
        self._at, self._acted = edges[-1].target, self.scheduler.current


def role_of(thread: Thread) -> str:
    """The specification's name of a thread."""
    return _ROLES.get(thread.name, thread.name)
