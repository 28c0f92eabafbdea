"""Parts of traces: what a flight recorder keeps begins in the middle, at a state that stands in its header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .schema import MalformedError, by_name, levels, number, record, rows, several, truth, word, words
from .state import State
from .tables import Begun, Frozen
from .verdict import TraceError


def _line(*kinds: Any) -> Any:
    def parse(value: Any) -> list[Any]:
        if type(value) is not list or len(value) != len(kinds):
            raise MalformedError(f"{repr(value)[:60]} is not a list of {len(kinds)}")
        return [kind(item) for kind, item in zip(kinds, value, strict=True)]

    return parse


_HOLDERS = several(_line(word, number))
_STATE = record(
    tenant=rows,
    keys=by_name(record(version=rows, status=levels)),
    live=by_name(number),
    generations=number,
    holders=several(_line(number, _HOLDERS)),
    frozen=several(_line(number, number, words)),
    steps=several(_line(number, number)),
    forwards=truth,
)


def parse_part(path: Path, part: Any) -> dict[str, Any]:
    """What a header says of the part that follows. Raises `TraceError` for a part without a state to begin at."""
    try:
        after = number(record(after=number, state=lambda value: value)(part)["after"])
        state = None if part["state"] in (None, {}) else _STATE(part["state"])
    except MalformedError as error:
        raise TraceError(f"{path}:1: the part: {error}") from error
    if state is None and after:
        raise TraceError(
            f"{path}: begins after event {after}, and the recorder found no quiet step to note the state at: it can be "
            "read and not replayed; more events (flight_recorder_events) make one more likely"
        )
    return {"after": after, "state": state}


def start(s: State, part: dict[str, Any]) -> None:
    """Bring the specification's variables to where the part begins: a step was begun, and nothing is on its way."""
    state = part["state"]
    if state is None:
        return
    if state["tenant"].shape != s.tenant.shape:
        raise TraceError(f"the part's state has {state['tenant'].size} slots, and the cache {s.num_slots}")
    s.tenant[:] = state["tenant"]
    for key, known in state["keys"].items():
        table = s.add_family([key])
        table.version[:], table.status[:] = known["version"], known["status"]
        # Nothing is on its way: what can be read lies in the pool. What cannot be read is never looked at.
        table.pool[:] = np.where(known["status"] == 2, known["version"], 0)
    s.live, s.generations = dict(state["live"]), state["generations"]
    for page, step, keys in state["frozen"]:
        s.frozen[page] = Frozen(step, keys, {}, landed=True)
    s.steps = {step: (page, []) for step, page in state["steps"]}
    for page, holders in state["holders"]:
        s.holders[page] = {(kind, holder) for kind, holder in holders}
        s.taken |= {holder for kind, holder in holders if kind == "step" and holder not in s.steps}
    s.reports_forwards, s.begun = state["forwards"], Begun({})
