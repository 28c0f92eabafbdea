"""A step of the host mirror's specification as the events that the code would log of it.

Hot rows are of the one request state that the specification has, and the order of lists is that of the checker's own.
Rows carry no identities. Of a stream's steps the code logs one event where several are taken at once: rows that were
handed on together land, a wait ends, a page is restored; the others have none. Neither has a block copy of nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from palimpsest.trace import Event

from ..mirror_replay.state import Rank
from .dump import State
from .mirror_machine import EVENTS, LAYERS, Args, NamedRows, asked, ranks_of
from .variables import Variables, code_name


@dataclass
class Step:
    """A step of a rank: the states before and after, and the checker in the state before."""

    before: Variables
    after: Variables
    machine: NamedRows
    name: str
    rank: int

    @property
    def worker(self) -> Rank:
        """The rank as the checker has it."""
        return self.machine.s.rank(self.rank)

    def was(self, variable: str) -> Any:
        """What the rank has of a variable before the step."""
        return self.before.of(variable)[self.name]

    def now(self, variable: str) -> Any:
        """And after it."""
        return self.after.of(variable)[self.name]

    @property
    def page_rows(self) -> int:
        """Rows of a page."""
        return self.machine.page_rows

    def slot(self, block: int, offset: int) -> int:
        """A slot by its block and offset."""
        return block * self.page_rows + offset


def told(action: str, before: State, after: State, machine: NamedRows) -> list[Event]:
    """The events of a step from `before` to `after`, where the checker is in the state of `machine`; or none."""
    s, t = Variables(before), Variables(after)
    names = ranks_of(s)
    tell: Callable[[Step], list[tuple[Args, Args]]] = globals()[f"_{code_name(action)}"]
    moved = names if action == "Meet" else [_moved(s, t, names)]
    said = [(number, each) for number, name in enumerate(names) if name in moved
            for each in tell(Step(s, t, machine, name, number))]  # fmt: skip
    thread = {"ComputeRuns": "device", "CopyRuns": "copy stream"}.get(action, "runner")
    return [Event(0, thread, code_name(action), {"rank": n, **args}, post) for n, (args, post) in said]


_PER_RANK = ("pc", "compute", "copies", "table", "stale", "at")


def _moved(s: Variables, t: Variables, names: list[str]) -> str:
    """The rank that took the step; the writer where no rank's own variable tells."""
    of = {variable: (s.of(variable), t.of(variable)) for variable in _PER_RANK}
    changed = [name for name in names if any(was[name] != now[name] for was, now in of.values())]
    return changed[0] if changed else names[0]


# -------------------------------------------------------------------- what many say


def _handed(step: Step) -> list[Args]:
    """The rows that the step hands to the copy stream."""
    queued = step.now("copies")[len(step.was("copies")) :]
    return _by_layer(step, [each for each in queued if each[0] == "copy"])


def _by_layer(step: Step, copies: Iterable[Any]) -> list[Args]:
    """Host slots and device slots of what is copied, by layer."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for _, layer, device_block, host_block, offset in copies:
        host, device = found.setdefault(layer, ([], []))
        host.append(step.slot(host_block, offset))
        device.append(step.slot(device_block, offset))
    return [
        {"layer": n, "host": found[name][0], "device": found[name][1]} for n, name in enumerate(LAYERS) if name in found
    ]


def _hot(step: Step) -> list[list[list[int]]]:
    return [[hot_of(step.now("table"), step.page_rows)]]


def hot_of(table: Iterable[tuple[int, int]], page_rows: int) -> list[int]:
    """The slots that are hot, as the code lists them."""
    return sorted(block * page_rows + offset for block, offset in table)


def _queues(step: Step, behind: list[int]) -> Args:
    """`behind`: the transfers of which the step queued the end."""
    enqueued = [*step.worker.enqueued, *(behind if step.rank == 0 else [])]
    waiting, stale = step.now("after"), step.now("stale")
    kept = [block for block in step.worker.stale if block in stale]
    return {"handed": _handed(step), "waiting": [each["id"] for each in waiting], "enqueued": enqueued,
            "stale": [*kept, *sorted(stale - set(kept))]}  # fmt: skip


def _batch(step: Step, rows: Iterable[Args]) -> tuple[list[int], list[int]]:
    """Host slots and device slots."""
    listed = list(rows)
    return [step.slot(x["hb"], x["off"]) for x in listed], [step.slot(x["db"], x["off"]) for x in listed]


def _written(step: Step, *, draft: bool) -> list[Args]:
    rows = asked(step.before, step.was("at"))["rows"]
    return [each for each in rows if each["ok"] or not draft]


# -------------------------------------------------------------------- between steps


def _import_rows(step: Step) -> list[tuple[Args, Args]]:
    rows = asked(step.before, step.was("at") + 1)["imports"]
    slots = [step.slot(hb, off) for hb, off, _, _ in rows]
    return [({"layer": layer, "slots": slots}, {"tags": None}) for layer in range(len(LAYERS))]


def _forget_state(step: Step) -> list[tuple[Args, Args]]:
    return [({"state": 0}, {"hot": _hot(step)})]


def _await_writes(step: Step) -> list[tuple[Args, Args]]:
    before, after = EVENTS.index(step.was("current")), EVENTS.index(step.now("current"))
    return [({}, {"waits": before, "next": 1 - after})]


def _meet(step: Step) -> list[tuple[Args, Args]]:
    return [({}, {"next": 1 - EVENTS.index(step.now("current"))})]


# -------------------------------------------------------------------- a step


def _copy_host_blocks(step: Step) -> list[tuple[Args, Args]]:
    pairs = [list(pair) for pair in asked(step.before, step.was("at"))["copies"]]
    writes = step.rank == 0
    return [({"copies": pairs}, {"wrote": writes, "tags": [None] * len(LAYERS) if writes else []})] if pairs else []


def _start_transfers(step: Step) -> list[tuple[Args, Args]]:
    s = asked(step.before, step.was("at"))
    transfers = [_transfer(each, restore=True) for each in s["restores"]]
    transfers += [_transfer(each, restore=False) for each in s["moves"]]
    mirrors = [
        {"source_starts": [step.slot(x["db"], x["off"])], "destination_start": step.slot(x["hb"], x["off"]),
         "num_rows": 1}
        for x in s["rows"]
    ]  # fmt: skip
    ends = [each["transfer_id"] for each in transfers if not each["after_forward"]]
    return [({"given": sorted(s["given"]), "transfers": transfers, "mirrors": mirrors}, _queues(step, ends))]


def _transfer(each: Args, *, restore: bool) -> Args:
    return {"transfer_id": each["id"], "host_block_id": each["hb"], "resident_block_ids": [each["db"]],
            "after_forward": not restore and each["after"], "restore": restore}  # fmt: skip


def _invalidate_blocks(step: Step) -> list[tuple[Args, Args]]:
    return [({"blocks": list(step.worker.stale)}, {"hot": _hot(step)})]


def _write(step: Step) -> list[tuple[Args, Args]]:
    draft = step.now("pc") == "drafted"
    layer, s = int(draft), asked(step.before, step.was("at"))
    host, device = _batch(step, _written(step, draft=draft))
    handed = _handed(step)
    args = {"layer": layer, "deferred": s["deferred"], "host": host, "states": [0] * len(host), "device": device}
    reported = sorted({*step.worker.reported, *(each["layer"] for each in handed)})
    return [(args, {"tags": None, "reported": reported, "handed": handed})]


def _selected(step: Step) -> list[list[int]]:
    hits = asked(step.before, step.was("at"))["hot"]
    return sorted([0, slot] for slot in {step.slot(hb, off) for hb, off, _, _ in hits})


def _select(step: Step) -> list[tuple[Args, Args]]:
    missing = [[0, slot] for slot in hot_of(step.now("missing"), step.page_rows)]
    return [({"layer": 0, "slots": _selected(step)}, {"missing": missing, "hot": _hot(step)[0]})]


def _gather(step: Step) -> list[tuple[Args, Args]]:
    return [({"layer": 0}, {"slots": _selected(step), "tags": None})]


def _phase(step: Step, *, draft: bool) -> Args:
    host, _ = _batch(step, _written(step, draft=draft))
    deferred = asked(step.before, step.was("at"))["deferred"]
    return {"slots": host, "states": [0] * len(host), "deferred": deferred and bool(host)}


def _finish_target(step: Step) -> list[tuple[Args, Args]]:
    args, rows = _phase(step, draft=False), _written(step, draft=False)
    refined = args["deferred"] and step.rank == 0
    args["staged"] = [step.slot(x["db"], x["off"]) if x["ok"] else -1 for x in rows] if refined else None
    return [(args, {"handed": _handed(step), "hot": _hot(step)})]


def _finish_drafts(step: Step) -> list[tuple[Args, Args]]:
    return [(_phase(step, draft=True), {"handed": _handed(step), "hot": _hot(step)})]


def _finish_step(step: Step) -> list[tuple[Args, Args]]:
    return [({}, _queues(step, [each["id"] for each in step.was("after")]))]


def _take_completed_transfers(step: Step) -> list[tuple[Args, Args]]:
    ended = step.after["taken"] - step.before["taken"]
    return [({}, {"taken": [each for each in step.worker.enqueued if each in ended]})]


def _shutdown(_: Step) -> list[tuple[Args, Args]]:
    return [({}, {})]


# -------------------------------------------------------------------- streams


def _compute_runs(step: Step) -> list[tuple[Args, Args]]:
    what, *rest = step.was("compute")[0]
    if what not in ("wait", "restore"):
        return []
    blocks = [rest[1]] if what == "restore" else []
    restored = [{"layer": layer, "block": block, "tags": None} for layer in range(len(LAYERS)) for block in blocks]
    return [({}, {"restored": restored})]


def _copy_runs(step: Step) -> list[tuple[Args, Args]]:
    queue = step.was("copies")
    if queue[0][0] != "wait":
        return []
    together = itertools.takewhile(lambda each: each[0] == "copy", queue[1:])
    landed = [{**of_layer, "tags": None} for of_layer in _by_layer(step, together)]
    return [({}, {"rows": landed})]
