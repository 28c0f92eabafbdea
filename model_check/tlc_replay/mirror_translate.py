"""Events of a host mirror in the words of its specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from palimpsest.trace import Event

from .mirror_choice import Choice
from .mirror_plans import Places, Plans, Record, numbered
from .mirror_trace import MirrorTrace, rank_name
from .selection import as_list

EVENTS = ("even", "odd")


def translate(name: str, config: dict[str, Any], events: Sequence[Event], choice: Choice) -> MirrorTrace:
    """`events` as TLC reads them, as far as `choice` goes."""
    return _Translation(config, events, choice).run(name)


class _Translation:
    """One pass over a trace; a method for each action that gives what its event says, or None to leave it out."""

    def __init__(self, config: dict[str, Any], events: Sequence[Event], choice: Choice) -> None:
        self._config, self._events, self._choice = config, events, choice
        self._places = Places(config, choice)
        self._plans = Plans(config, events, choice, self._places)
        self._layers = {choice.target: "target", **({choice.draft: "draft"} if choice.draft is not None else {})}
        self._group = sum(layer["leader"] for layer in config["layers"][: choice.target + 1]) - 1
        #: event and layer of rows that an earlier event hands on, as the specification has it
        self._told: set[tuple[int, int]] = set()
        self._later = self._handed_later()
        self._transfers = {each["id"] for plan in self._plans.steps for each in (*plan["restores"], *plan["moves"])}
        #: the specification imports the rows of a step at once: with the last event of it
        self._last_import = {
            step: event.seq
            for step, event in numbered(events)
            if event.action == "import_rows" and event.args["layer"] == choice.target
        }
        self._selected: set[tuple[int, int]] = set()
        self._gathered: set[tuple[int, int]] = set()

    def run(self, name: str) -> MirrorTrace:
        """The whole translation."""
        translated: list[Record] = []
        waiting: dict[str, Record] = {}
        for step, event in numbered(self._events):
            say: Callable[[int, Event], Record | None] = getattr(self, f"_{event.action}")
            if (said := say(step, event)) is None:
                continue
            record = {"action": event.action, "seq": event.seq, "rank": rank_name(event.args["rank"]), **said}
            if event.action == "select" and self._choice.leader != self._choice.target:
                waiting[record["rank"]] = record  # a leader selects before its follower, which is replayed, writes
                continue
            if event.action in ("gather", "finish_target") and record["rank"] in waiting:
                translated.append(waiting.pop(record["rank"]))
            translated.append(record)
        config = self._config
        return MirrorTrace(
            name, self._choice, config["observed"], self._plans.steps, translated, config["ranks"],
            config["block_rows"], config["eager"], self._places.num_device, len(self._events), len(translated),
        )  # fmt: skip

    # ---------------------------------------------------------------- what many say

    def _moving(self, rows: Iterable[Record], layers: Iterable[int]) -> list[list[Any]]:
        """Rows on their way to the host: layer, host block, offset, page."""
        return [
            [self._layers[each["layer"]], *at, self._places.page(host, device)]
            for each in rows if each["layer"] in self._layers and each["layer"] in layers
            for host, device in zip(as_list(each["host"]), as_list(each["device"]), strict=True)
            if (at := self._places.slot(host)) is not None
        ]  # fmt: skip

    def _handed_later(self) -> dict[int, list[Record]]:
        """Of each event in which a chosen layer writes, the rows of it that its phase hands on then or later: when more
        layers have written, or at its end. The specification hands them on at once where none can be rejected."""
        found: dict[int, list[Record]] = {}
        writing: dict[tuple[int, int], int] = {}
        for event in self._events:
            rank, ends = event.args["rank"], event.action in ("finish_target", "finish_drafts")
            if event.action == "write" and event.args["layer"] in self._layers and not event.args["deferred"]:
                writing[rank, event.args["layer"]] = event.seq
                found[event.seq] = []
            if event.action == "write" or ends:
                for each in event.post["handed"]:
                    if (seq := writing.get((rank, each["layer"]))) is not None:
                        found[seq].append(each)
                        self._told.add((event.seq, each["layer"]))
            if ends:
                writing = {key: seq for key, seq in writing.items() if key[0] != rank}
        return found

    def _hot(self, groups: list[list[list[int]]]) -> list[list[int]]:
        return self._places.slots(groups[self._group][self._choice.state])

    def _ids(self, ids: Iterable[int]) -> list[int]:
        return [each for each in ids if each in self._transfers]

    def _blocks(self, blocks: Iterable[int]) -> list[int]:
        return [block for each in blocks if (block := self._places.host(each)) is not None]

    def _queues(self, post: Record) -> Record:
        return {
            "handed": self._moving(post["handed"], self._layers), "waiting": self._ids(post["waiting"]),
            "enqueued": self._ids(post["enqueued"]), "stale": self._blocks(post["stale"]),
        }  # fmt: skip

    def _mine(self, pairs: Iterable[list[int]]) -> list[list[int]]:
        """Slots of the chosen state."""
        return self._places.slots(slot for state, slot in pairs if state == self._choice.state)

    def _rows(self, step: int) -> list[Record]:
        rows: list[Record] = self._plans.of(step)["rows"]
        return rows

    # ---------------------------------------------------------------- between steps

    def _import_rows(self, step: int, event: Event) -> Record | None:
        if event.args["layer"] != self._choice.target or event.seq != self._last_import[step]:
            return None
        imported = [[block, offset] for block, offset, _, _ in self._plans.of(step)["imports"]]
        return {"slots": imported} if imported else None

    def _forget_state(self, _: int, event: Event) -> Record | None:
        return {"hot": self._hot(event.post["hot"])} if event.args["state"] == self._choice.state else None

    def _await_writes(self, _: int, event: Event) -> Record:
        return {"waits": EVENTS[event.post["waits"]], "next": EVENTS[event.post["next"]]}

    def _meet(self, _: int, event: Event) -> Record:
        return {"next": EVENTS[event.post["next"]]}

    # ---------------------------------------------------------------- a step

    def _copy_host_blocks(self, _: int, event: Event) -> Record | None:
        copies = self._plans.copies(event)
        return {"copies": copies, "wrote": event.post["wrote"]} if copies else None

    def _start_transfers(self, step: int, event: Event) -> Record:
        rows = self._plans.rows(event.args["mirrors"], step)
        return {**self._queues(event.post), "places": [[row["hb"], row["off"], row["db"]] for row in rows]}

    def _invalidate_blocks(self, _: int, event: Event) -> Record | None:
        return {"hot": self._hot(event.post["hot"])} if self._blocks(event.args["blocks"]) else None

    def _write(self, step: int, event: Event) -> Record | None:
        layer = event.args["layer"]
        if layer not in self._layers or not self._rows(step):
            return None
        places = zip(as_list(event.args["host"]), as_list(event.args["device"]), strict=True)
        return {
            "layer": self._layers[layer],
            "places": [
                [*at, self._places.page(host, device)]
                for host, device in places
                if (at := self._places.slot(host)) is not None
            ],
            "handed": self._moving(self._later.get(event.seq, []), [layer]),
        }

    def _select(self, step: int, event: Event) -> Record | None:
        key, slots = (event.args["rank"], step), self._mine(event.args["slots"])
        if event.args["layer"] != self._choice.leader or key in self._selected or not slots:
            return None
        self._selected.add(key)
        hot = self._places.slots(event.post["hot"][self._choice.state])
        return {"slots": slots, "missing": self._mine(event.post["missing"]), "hot": hot}

    def _gather(self, step: int, event: Event) -> Record | None:
        key = event.args["rank"], step
        if event.args["layer"] != self._choice.target or key not in self._selected - self._gathered:
            return None
        self._gathered.add(key)
        return {"slots": self._mine(event.post["slots"])}

    def _finish_target(self, _: int, event: Event) -> Record:
        return {"handed": self._at_the_end(event), "hot": self._hot(event.post["hot"])}

    def _finish_drafts(self, step: int, event: Event) -> Record | None:
        if not self._rows(step) or self._choice.draft is None:
            return None
        return {"handed": self._at_the_end(event)}

    def _at_the_end(self, event: Event) -> list[list[Any]]:
        """Rows handed on at the end of a phase by layers that a graph ran, or whose rows could be rejected."""
        return self._moving(event.post["handed"], [n for n in self._layers if (event.seq, n) not in self._told])

    def _finish_step(self, _: int, event: Event) -> Record:
        return self._queues(event.post)

    def _take_completed_transfers(self, _: int, event: Event) -> Record | None:
        taken = self._ids(event.post["taken"])
        return {"taken": taken} if taken else None

    def _shutdown(self, _: int, event: Event) -> Record:  # noqa: ARG002  it says nothing
        return {}

    # ---------------------------------------------------------------- streams

    def _compute_runs(self, _: int, event: Event) -> Record:
        """The pages that were restored; in a projection they may be those of blocks that were left out."""
        blocks = {each["block"] for each in event.post["restored"] if each["layer"] == self._choice.target}
        return {"restored": [self._places.device(block) for block in sorted(blocks)] if self._choice.whole else []}

    def _copy_runs(self, _: int, event: Event) -> Record | None:
        rows = self._moving(event.post["rows"], self._layers)
        return {"rows": rows} if rows else None
