"""Which thread did a step of the specification: the action says it, or what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .spec_state import State

_OF_ONE = {
    "engine": (
        "begin_step", "seal_oldest", "publish", "reset", "dispatch", "escalate", "reserve", "unreserve",
        "claim_page_begin", "claim_page_end", "freeze", "overwrite_live",
    ),
    "builder": ("take_step", "discard_step"),
    "closer": ("shutdown_begin", "shutdown_end"),
    "committer": ("claim_copy", "host_ready", "begin_pool_write", "pool_row_written", "complete"),
    "device": ("copy_lands",),
}  # fmt: skip
#: rows on their way, one at a time: they lie between two actions
DATA = frozenset({"row_gathered", "pool_row_written"})
_THREAD = {action: thread for thread, actions in _OF_ONE.items() for action in actions}


def thread_alone(action: str) -> str:
    """The thread that alone does an action; empty for one that several do, or nobody."""
    return _THREAD.get(action, "")


def thread_of(action: str, before: State, after: State) -> str:
    """The thread that takes `before` to `after` by `action`."""
    if action in _THREAD:
        return _THREAD[action]
    if action == "drain":
        return _drainer(before, after)
    if action == "release_page":
        return _leaver(before, after)
    if before["eng"] != after["eng"]:
        return "engine"
    of = "com" if action in ("fail", "record_failure", "wake") else "rdr"
    changed = [thread for thread, place in after[of].items() if place != before[of][thread]]
    return changed[0] if changed else "builder"


def _drainer(before: State, after: State) -> str:
    holder = after["lock"]["state"]
    if holder != "nobody":
        return str(holder)
    return "engine" if before["eng"] != after["eng"] else "builder"


def _leaver(before: State, after: State) -> str:
    if before["eng"] != after["eng"]:
        return "engine"
    if before["bld"] != after["bld"]:
        return "builder"
    if before["com"] != after["com"]:
        return "closer"
    return next(thread for thread in ("committer", "closer") if _left(before, after) <= _leaving(before["com"][thread]))


def _left(before: State, after: State) -> set[int]:
    """The tasks that left a page."""
    return {n for page, holders in before.of("holders").items() for _, n in holders - after.of("holders")[page]}


def _leaving(writer: Mapping[str, Any]) -> set[int]:
    """The tasks with which a writer is at the point of leaving their pages."""
    return set(writer["tids"]) if writer["pc"] in ("writing", "failed") else set()
