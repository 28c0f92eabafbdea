"""What of a trace TLC replays: a small one whole, of a large one what touches its busiest blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palimpsest.trace import Event

from ..mirror_replay.schema import SYSTEM
from . import mirror_translate
from .mirror_choice import busiest, choices, used_blocks
from .mirror_trace import MirrorTrace
from .run import Replayable
from .selection import busiest_pairs, steps_of, touched
from .translate import TlcTrace, translate

#: a trace up to these sizes is replayed whole; TLC's time for an event grows with the slots
WHOLE_EVENTS, WHOLE_SLOTS = 600, 64
#: projections of a larger trace: pairs of blocks, eight blocks in all
PAIRS = 4
#: a projection's first events, which are a trace too; all together take a minute at most
WINDOW = 5_000


def replayable(config: dict[str, Any], events: Sequence[Event]) -> bool:
    """Whether TLC can take the trace: it begins at the beginning, and has the events of each rank that it speaks of."""
    if config.get("system") != SYSTEM:
        return "part" not in config
    return {event.args["rank"] for event in events} == set(range(config["ranks"]))


def windows(name: str, config: dict[str, Any], events: Sequence[Event]) -> list[Replayable]:
    """The trace itself, or its projections on busy blocks: all events that touch them, from the trace's start.

    `events` must be a trace that the in-process checker accepts, and `replayable`.
    """
    if config.get("system") == SYSTEM:
        return list(_of_mirror(name, config, events))
    return list(_of_cache(name, config, events))


def _of_cache(name: str, config: dict[str, Any], events: Sequence[Event]) -> list[TlcTrace]:
    slots = len(touched(steps_of(events), config["block_size"])) * config["block_size"]
    if len(events) <= WHOLE_EVENTS and slots <= WHOLE_SLOTS:
        return [translate(name, config, events, None)]
    pairs = busiest_pairs(events, PAIRS)
    parts = [translate(f"{name}, blocks {' and '.join(map(str, pair))}", config, events, pair) for pair in pairs]
    return [replace(part, events=part.events[:WINDOW]) for part in parts]


def _of_mirror(name: str, config: dict[str, Any], events: Sequence[Event]) -> list[MirrorTrace]:
    """Of each part one layer of the target and the hot rows of one request: as many parts as it takes to have all of
    either, `PAIRS` at most."""
    small = len(used_blocks(config, events)) * config["block_rows"] <= WHOLE_SLOTS and len(events) <= WHOLE_EVENTS
    chosen = choices(config, events, [] if small else busiest(config, events, PAIRS), PAIRS)
    parts = [mirror_translate.translate(f"{name}, {each}", config, events, each) for each in chosen]
    return [replace(part, events=part.events[:WINDOW]) for part in parts]
