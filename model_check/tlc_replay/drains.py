"""Drains that leave no event in a trace, because they found nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

#: critical sections that begin with a drain
_ENTERS = frozenset({"begin_step", "publish", "take_step", "reset", "shutdown_end"})
_RECORDS = frozenset({"complete", "record_failure"})


def enter_before_records(translated: list[Record]) -> None:
    """Insert the drains that found nothing, which leave no event, where a record came after them and before the
    action that they belong to."""
    place = 0
    since: int | None = None  # the first record that no drain has taken
    while place < len(translated):
        event = translated[place]
        if event["action"] == "drain":
            since = None
        elif event["action"] in _RECORDS and since is None:
            since = place
        elif event["action"] in _ENTERS and since is not None and not _has_drained(event["thread"], translated, place):
            drain = {"action": "drain", "seq": event["seq"], "thread": event["thread"]}
            translated.insert(since, {**drain, "written": [], "failed": [], "status": []})
            place += 1
            since += 1
        place += 1


def _has_drained(thread: str, translated: Sequence[Record], place: int) -> bool:
    """Whether the thread's event before this one is the drain that it begins with."""
    before = (translated[i] for i in range(place - 1, -1, -1))
    last = next((event for event in before if event["thread"] == thread), None)
    return last is not None and last["action"] == "drain"
