"""What of a trace TLC replays: a small one whole, of a large one what touches its busiest blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palimpsest.trace import Event

from .selection import busiest_pairs, steps_of, touched
from .translate import TlcTrace, translate

#: a trace up to these sizes is replayed whole; TLC's time for an event grows with the slots
WHOLE_EVENTS, WHOLE_SLOTS = 600, 64
#: projections of a larger trace: pairs of blocks, eight blocks in all
PAIRS = 4
#: a projection's first events, which are a trace too; all together take a minute at most
WINDOW = 5_000


def windows(name: str, config: dict[str, Any], events: Sequence[Event]) -> list[TlcTrace]:
    """The trace itself, or its projections on busy blocks: all events that touch them, from the trace's start.

    `events` must be a trace that the in-process checker accepts.
    """
    slots = len(touched(steps_of(events), config["block_size"])) * config["block_size"]
    if len(events) <= WHOLE_EVENTS and slots <= WHOLE_SLOTS:
        return [translate(name, config, events, None)]
    pairs = busiest_pairs(events, PAIRS)
    return [_first(translate(f"{name}, blocks {' and '.join(map(str, pair))}", config, events, pair)) for pair in pairs]


def _first(trace: TlcTrace) -> TlcTrace:
    return replace(trace, events=trace.events[:WINDOW])
