"""Lets the real threads go on so that they take the edges that a plan asks for: what each thread is to call, which
copies fail, and who goes on."""

from __future__ import annotations

from typing import Any

from palimpsest.prefix_cache.state import PREFETCH_NAME

from ..explore.scheduler import STATE_LOCK, Scheduler
from ..explore.threads import GOES, LATE, Option, Thread
from .edges import fails, runs_out
from .graph import Edge, Plan
from .place import Place, role_of

#: the point of a critical section between its drain and its action
ENTERED = "entered"
_DATA = frozenset({"land", "read", "write", "written", "copy"})
#: where a thread that has done an action stops, and others may go on
_STOPS = frozenset({ENTERED, "start", "call", "acquire", "wait for", "pause", "join", "cancel"}) | _DATA


class FollowingScheduler(Scheduler):
    """A scheduler whose next thread is the one that the follower says, also where only one can go on."""

    spends, fine = True, False

    def __init__(self, follower: Follower) -> None:
        super().__init__(self)
        self._follower = follower

    def choose(self, *_: Any) -> None:
        """Never asked: the follower chooses."""

    def _choose(self, me: Thread | None) -> Option | None:
        if self._over:
            return None
        option = self._follower.choose(me)
        if option is None:
            self.left = self._over = True
            return None
        self._take(option)
        return option

    def can_go(self, thread: Thread) -> bool:
        """Whether the thread can do what it is about to do."""
        return self._can_go(thread)


class Follower(Place):
    """One run: the place where it is, and its threads, of which one goes on at a time."""

    scheduler: FollowingScheduler

    def __init__(self, plan: Plan, start: str) -> None:
        super().__init__(FollowingScheduler(self), plan, start)

    # ---------------------------------------------------------------- what the runner asks

    def wants(self, role: str) -> bool:
        """Whether the next step is that thread's."""
        return self.expected is not None and self.expected.thread == role

    def call_of(self, role: str) -> Any:
        """The call that leads to the next step of a thread that is in none."""
        edge = self.expected
        assert edge is not None
        call = self._call(edge)
        if call is None:
            self._plan.refuse(edge, f"the {role} is in no call that does it")
        return call

    def _call(self, edge: Edge) -> Any:
        match edge.thread:
            case "engine":
                return self._engine_call(edge)
            case "builder":
                return self._builder_call(edge)
        return edge.action

    def _engine_call(self, edge: Edge) -> str | None:
        if edge.action in ("overwrite_live", "begin_step", "reset"):
            return edge.action
        if self.state["eng"]["pc"] == "forward" and edge.action in (
            "join_begin",
            "reserve",
            "claim_page_begin",
            "drain",
        ):
            return "save"
        if edge.action == "drain":
            planned = (each.action for each in self._plan.path if each.action in ("begin_step", "reset"))
            return next(planned, "begin_step" if self.state["agenda"] else "reset")
        return None

    def _builder_call(self, edge: Edge) -> tuple[str, int] | None:
        if edge.action in ("take_step", "discard_step"):
            return edge.action, self.ahead()["bld"]["step"]
        if edge.action == "drain" and (steps := self.state.of("steps")):
            states = self._plan.graph.states
            planned = (states[each.target]["bld"]["step"] for each in self._plan.path if each.action == "take_step")
            return "take_step", next(planned, min(steps))
        return None

    def landing_page(self) -> int:
        """The page on which the next copy lands."""
        ahead = self.ahead().of("onWay")
        return int(next(page for page, queue in self.state.of("onWay").items() if queue != ahead[page]))

    def fails_here(self) -> bool:
        """Whether the calling thread's copy is to fail."""
        edge, me = self.expected, self.scheduler.current
        return (
            edge is not None and me is not None and edge.thread == role_of(me) and fails(edge, self.state, self.ahead())
        )

    def is_closing(self) -> bool:
        """Whether the calling thread shuts the cache down."""
        return self.scheduler.current is not None and self.scheduler.current.name == "closer"

    # ---------------------------------------------------------------- who goes on

    def choose(self, me: Thread | None) -> Option | None:
        """The thread that goes on: the one that has just acted until it stops, then the one that is to act."""
        if self._ended:
            return None
        acted = me is not None and me is self._acted and not me.done
        if acted and me is not None and not self._stops(me) and self.scheduler.can_go(me):
            return Option(me, GOES, 0)
        self._acted = None
        while (edge := self.expected) is not None:
            thread = next(
                (each for each in self.scheduler.threads if role_of(each) == edge.thread and not each.done), None
            )
            if thread is not None and self.scheduler.can_go(thread):
                return Option(thread, GOES, 0)
            if thread is not None and thread.operation.ends is not None and runs_out(edge, self.state, self.ahead()):
                self._run_out(edge, thread)
                return Option(thread, LATE, 0)
            if thread is not None and (helper := self._awaited(thread)) is not None:
                return Option(helper, GOES, 0)
            self._plan.refuse(edge, f"the {edge.thread} waits: {thread.operation}" if thread else f"no {edge.thread}")
        return None

    def _run_out(self, edge: Edge, thread: Thread) -> None:
        """A wait that runs out raises, which is a step of its own that leaves no event."""
        if edge.action in ("join_end", "claim_page_end"):
            self._plan.take(edge)
            self.taken.append(edge)
            self._at, self._acted = edge.target, thread
            self._ran_out.add(edge.thread)

    def _awaited(self, thread: Thread) -> Thread | None:
        """Who must go on for a thread that waits for a thread's end, for a job, or to be told of the shutdown."""
        what, on = thread.operation.what, thread.operation.on
        name = (
            on
            if what == "join"
            else PREFETCH_NAME
            if on.startswith("job ")
            else "closer"
            if self.state["closed"]
            else ""
        )
        found = next((each for each in self.scheduler.threads if each.name == name and each is not thread), None)
        return found if found is not None and not found.done and self.scheduler.can_go(found) else None

    def _stops(self, me: Thread) -> bool:
        holder = self.state["lock"]["state"]
        held = {name for name, owner in self.scheduler.held() if owner == me.name}
        return held == ({STATE_LOCK} if holder == role_of(me) else set()) and me.operation.what in _STOPS
