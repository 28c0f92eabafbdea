"""What the scheduler asked for in each step of a host mirror's trace, as its events tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from palimpsest.trace import Event

from .mirror_choice import Choice

Record = dict[str, Any]
#: rank and step, counted from 1 as the specification does
At = tuple[int, int]


def numbered(events: Sequence[Event]) -> Iterator[tuple[int, Event]]:
    """Each event with the step that its rank is in; rows are imported for the step after it."""
    at: dict[int, int] = {}
    for event in events:
        rank = event.args["rank"]
        at[rank] = at.get(rank, 0) + (event.action == "await_writes")
        yield at[rank] + (event.action == "import_rows"), event


class Places:
    """Numbers of what is replayed: host blocks, and device blocks of the chosen layers' source."""

    def __init__(self, config: dict[str, Any], choice: Choice) -> None:
        self.rows: int = config["block_rows"]
        self.source: int = config["layers"][choice.target]["source"]
        self._host = {block: number for number, block in enumerate(choice.blocks)}
        self._device: dict[int, int] = {}

    @property
    def num_device(self) -> int:
        """How many device blocks were named."""
        return len(self._device)

    def host(self, block: int) -> int | None:
        """A host block; None where it is left out."""
        return self._host.get(int(block))

    def slot(self, slot: int) -> list[int] | None:
        """Block and offset of a host slot; None where it is left out."""
        block = self.host(int(slot) // self.rows)
        return None if block is None else [block, int(slot) % self.rows]

    def device(self, block: int) -> int:
        """A device block."""
        return self._device.setdefault(int(block), len(self._device))

    def page(self, host_slot: int, device_slot: int) -> int:
        """The device block of a row, -1 where its place in the page is not that of the host."""
        same = int(host_slot) % self.rows == int(device_slot) % self.rows
        return self.device(int(device_slot) // self.rows) if same else -1

    def slots(self, slots: Any) -> list[list[int]]:
        """Those of the host slots that are replayed."""
        return [at for slot in slots if (at := self.slot(slot)) is not None]


class Plans:
    """The steps of a trace; `choice` says which rows of them are replayed."""

    def __init__(self, config: dict[str, Any], events: Sequence[Event], choice: Choice, places: Places) -> None:
        self._choice, self._places = choice, places
        self._reference = next(n for n, layer in enumerate(config["layers"]) if not layer["draft"])
        self._source_of_reference: int = config["layers"][self._reference]["source"]
        self.steps: list[Record] = []
        for step, event in numbered(events):
            while len(self.steps) < step:
                self.steps.append(
                    {
                        "copies": [],
                        "given": [],
                        "restores": [],
                        "moves": [],
                        "rows": [],
                        "deferred": True,
                        "imports": [],
                    }
                )
            if event.args["rank"] == 0 and (note := getattr(self, f"_{event.action}", None)) is not None:
                note(self.steps[step - 1], event, step)
        for each in self.steps:
            each["rows"] = [{k: v for k, v in row.items() if k != "reference"} for row in each["rows"]]

    def of(self, step: int) -> Record:
        """A step's."""
        return self.steps[step - 1]

    def transfer(self, each: Record) -> Record | None:
        """A transfer, where its host block is replayed."""
        block = self._places.host(each["host_block_id"])
        if block is None:
            return None
        device = self._places.device(each["resident_block_ids"][self._places.source])
        return {"id": each["transfer_id"], "hb": block, "db": device, "after": each["after_forward"]}

    def rows(self, mirrors: Sequence[Record], step: int) -> list[Record]:
        """The rows that are mirrored, where their host blocks are replayed."""
        found = []
        for each in mirrors:
            for at in range(each["num_rows"]):
                slot = each["destination_start"] + at
                if (place := self._places.slot(slot)) is not None:
                    page = self._places.page(slot, each["source_starts"][self._places.source] + at)
                    found.append(
                        {"db": page, "hb": place[0], "off": place[1], "gen": step, "pos": slot, "ok": True,
                         "reference": each["source_starts"][self._source_of_reference] + at}
                    )  # fmt: skip
        return found

    # ---------------------------------------------------------------- the writer's events

    def _import_rows(self, plan: Record, event: Event, step: int) -> None:
        if event.args["layer"] == self._choice.target:
            new = [
                [*at, step, int(slot)] for slot in event.args["slots"] if (at := self._places.slot(slot)) is not None
            ]
            plan["imports"] = [*plan["imports"], *(each for each in new if each not in plan["imports"])]

    def _copy_host_blocks(self, plan: Record, event: Event, _: int) -> None:
        plan["copies"] = self.copies(event)

    def copies(self, event: Event) -> list[list[int]]:
        """Copies of host blocks that are replayed."""
        pairs = [[self._places.host(block) for block in pair] for pair in event.args["copies"]]
        return [[int(a), int(b)] for a, b in pairs if a is not None and b is not None]

    def _start_transfers(self, plan: Record, event: Event, step: int) -> None:
        plan["given"] = [block for each in event.args["given"] if (block := self._places.host(each)) is not None]
        for each in event.args["transfers"]:
            if (transfer := self.transfer(each)) is not None:
                after = transfer.pop("after")
                plan["restores" if each["restore"] else "moves"].append(
                    transfer if each["restore"] else {**transfer, "after": after}
                )
        plan["rows"] = self.rows(event.args["mirrors"], step)

    def _write(self, plan: Record, event: Event, _: int) -> None:
        if event.args["layer"] == self._choice.target:
            plan["deferred"] = event.args["deferred"]

    def _finish_target(self, plan: Record, event: Event, _: int) -> None:
        staged = event.args["staged"]
        for row in plan["rows"]:
            row["ok"] = staged is None or row["reference"] in staged
