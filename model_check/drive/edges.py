"""What an edge needs of the environment: a copy that fails, a wait that runs out. And where code and specification are
known to differ."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Edge
from .spec_state import State


def fails(edge: Edge, before: State, after: State) -> bool:
    """Whether the thread's next copy must fail for it to take the edge."""
    match edge.action, edge.thread:
        case "fail", "committer":
            return True
        case "release_page", "engine":
            return not before["closed"] and not before["failed"]
        case "drop_read", "prefetch" | "builder":
            return edge.thread in before["rdr"] and _gathering(edge, before, after)
    return False


def _gathering(edge: Edge, before: State, after: State) -> bool:
    reader = before["rdr"][edge.thread]
    if reader["pc"] != "gather" or reader == after["rdr"][edge.thread]:
        return False
    read = before.of("reads")[reader["hit"]]
    return bool(read["st"] == "fetching" and read["try"] == reader["try"])


def runs_out(edge: Edge, before: State, after: State) -> bool:
    """Whether the thread's wait must run out for it to take the edge."""
    match edge.action, edge.thread:
        case "join_end", "engine":
            return bool(after["eng"]["pc"] in ("forward", "stopped"))
        case "join_end", _:
            return bool(after["rdr"][edge.thread]["pc"] == "error")
        case "claim_page_end", _:
            return bool(after["eng"]["pc"] != "claimed")
        case "release_page", "builder":
            return bool(after["bld"]["pc"] == "raising")
        case "release_page", "engine":
            return bool(before.of("onWay")[before["eng"]["page"]])
        case "fail", _:
            return True
    return False


def only_runs_out(edge: Edge, before: State, after: State) -> bool:
    """Whether the edge is of a wait that runs out and of no other: a thread that got what it waited for has not taken
    it, although the state that the code shares is the same."""
    match edge.action, edge.thread:
        case "join_end", "engine":
            return runs_out(edge, before, after)
        case "join_end", reader:
            return runs_out(edge, before, after) and not _some_lost(before["rdr"][reader]["joins"], before)
        case "claim_page_end", _:
            return runs_out(edge, before, after) and not before["closed"]
    return False


def _some_lost(tids: Iterable[int], state: State) -> bool:
    tasks = state.of("tasks")
    return any(tasks[tid]["state"] == "FAILED" if tid in tasks else state["failed"] for tid in tids)


_OF_A_SAVE = ("reserve", "unreserve", "claim_page_begin", "claim_page_end", "freeze")


def known_difference(action: str, role: str, state: State) -> str | None:
    """Why the code's action leads to another state than the specification's, where that is known and harmless."""
    if role == "engine" and state["com"]["closer"]["pc"] == "ended" and action in _OF_A_SAVE:
        return "known: a save that a shutdown has overtaken goes on with its step's rows until it raises"
    return None
