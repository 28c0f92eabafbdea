"""Which part of a host mirror's trace TLC replays: layers, a request state, and all host blocks or a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.trace import Event


@dataclass(frozen=True)
class Choice:
    """A layer of the target model, perhaps one of the draft model, a request state, and host blocks."""

    target: int
    draft: int | None
    #: the layer whose selection the target's layer gathers
    leader: int
    state: int
    blocks: tuple[int, ...]
    whole: bool

    def __str__(self) -> str:
        drafts = "" if self.draft is None else f" and {self.draft}"
        blocks = "" if self.whole else f", host blocks {', '.join(map(str, self.blocks))}"
        return f"layer {self.target}{drafts}, state {self.state}{blocks}"


def choices(
    config: dict[str, Any], events: Sequence[Event], blocks: Iterable[Collection[int]], parts: int
) -> list[Choice]:
    """A choice for each of `blocks`, of different layers. Where there are none, choices of all blocks: as many as there
    are layers of the target or request states, at most `parts`, those with a draft layer beside them first."""
    listed = [tuple(sorted(each)) for each in blocks]
    states = _states(events, config["block_rows"], None)
    pairs = _layers(config)
    count = len(listed) or min(parts, max(len(pairs), len(states)))
    everything = tuple(sorted(used_blocks(config, events)))
    made = []
    for number in range(count):
        target, draft = pairs[number % len(pairs)]
        chosen = listed[number] if listed else everything
        mine = _states(events, config["block_rows"], chosen)[:1] if listed else states[number % len(states) :]
        made.append(Choice(target, draft, _leader(config, target), mine[0], chosen, not listed))
    return made


def _layers(config: dict[str, Any]) -> list[tuple[int, int | None]]:
    """Each layer of the target with the first draft layer whose rows lie in the same pages."""
    layers = config["layers"]
    drafts = {layer["source"]: n for n, layer in reversed(list(enumerate(layers))) if layer["draft"]}
    pairs = [(n, drafts.get(layer["source"])) for n, layer in enumerate(layers) if not layer["draft"]]
    return sorted(pairs, key=lambda pair: pair[1] is None)


def _leader(config: dict[str, Any], target: int) -> int:
    return max((n for n in range(target + 1) if config["layers"][n]["leader"]), default=target)


def _states(events: Sequence[Event], rows: int, blocks: Collection[int] | None) -> list[int]:
    """Request states, those first with most rows (of these host blocks) that attention selected."""
    selected = Counter(
        state
        for event in events
        if event.action == "select"
        for state, slot in event.args["slots"]
        if blocks is None or slot // rows in blocks
    )
    return [state for state, _ in selected.most_common()] or [0]


def used_blocks(config: dict[str, Any], events: Sequence[Event]) -> Counter[int]:
    """How often rows, transfers and copies name each host block."""
    used: Counter[int] = Counter()
    for event in events:
        used.update(_named(event, config["block_rows"]))
    return used


def _named(event: Event, rows: int) -> Iterator[int]:
    match event.action:
        case "import_rows":
            yield from {slot // rows for slot in event.args["slots"]}
        case "copy_host_blocks":
            yield from (block for pair in event.args["copies"] for block in pair)
        case "start_transfers":
            yield from (each["host_block_id"] for each in event.args["transfers"])
            for each in event.args["mirrors"]:
                first = each["destination_start"]
                yield from {slot // rows for slot in range(first, first + each["num_rows"])}
        case "select":
            yield from {slot // rows for _, slot in event.args["slots"]}


def busiest(config: dict[str, Any], events: Sequence[Event], pairs: int) -> list[set[int]]:
    """Disjoint pairs of the host blocks that are named most, each with the blocks that it is a copy of."""
    sources: dict[int, set[int]] = {}
    for event in events:
        if event.action == "copy_host_blocks":
            for source, destination in event.args["copies"]:
                sources.setdefault(destination, set()).add(source)
    ranked = [block for block, _ in used_blocks(config, events).most_common(2 * pairs)]
    return [_closed(set(ranked[at : at + 2]), sources) for at in range(0, len(ranked), 2)]


def _closed(blocks: set[int], sources: dict[int, set[int]]) -> set[int]:
    todo = list(blocks)
    while todo:
        new = sources.get(todo.pop(), set()) - blocks
        blocks |= new
        todo += new
    return blocks
