"""What both checkers have of a state of the host mirror. A row is <<request generation, position, step>>."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..mirror_replay.state import Copy, Rank
from .dump import State
from .mirror_machine import EVENTS, LAYERS, NamedRows, Row, asked, ranks_of
from .mirror_telling import hot_of
from .variables import Variables

View = dict[str, Any]
Names = dict[int, Row]

_PHASES = {"written": "forward", "selected": "forward", "gathered": "forward"}
_HANDS_ON = ("started", "forward", "target", "drafted", "drafts")
_FIRST = {"compute": ("write", "record", "end", "fetch", "use"), "copies": ("copy", "record", "end")}


def settled(state: State) -> bool:
    """Whether what the code does at once is done, so that nothing has to come first (`models/CallersOrder.tla`)."""
    v = Variables(state)
    queued = any(queue and queue[0][0] in kinds for name, kinds in _FIRST.items() for queue in v.of(name).values())
    return not queued and not any(
        pc == "met" and not asked(v, v.of("at")[rank])["copies"] for rank, pc in v.of("pc").items()
    )


# -------------------------------------------------------------------- TLC's


def seen_by_tlc(state: State) -> View:
    """What both have, as TLC has it."""
    v = Variables(state)
    host = v.of("host")
    page_rows = len(host[0])
    truth = v.of("truth")
    view: View = {
        "host": _layers(host),
        "truth": [truth[block][offset] for block in sorted(truth) for offset in range(page_rows)],
        "ended": sorted(v["acked"] - v["taken"]),
        "rejected": sorted(v["rejected"]),
    }
    for number, name in enumerate(ranks_of(v)):
        view |= {f"{what} of rank {number}": found for what, found in _rank_of_tlc(v, name, page_rows).items()}
    ends = [each[1] for queue in (v.of("compute")["w"], v.of("copies")["w"]) for each in queue if each[0] == "end"]
    wanted = v.of("wanted")
    moving = [each[1] for each in v.of("copies")["w"] if each[0] == "end"]
    view["wanted"] = {
        each: [row for _, row in sorted(_indexed(wanted[each]["rows"])) if row] for each in sorted(moving)
    }
    view["enqueued"] = sorted([*ends, *view["ended"]])
    return view


def _indexed(rows: Any) -> list[tuple[int, Row]]:
    return list(rows.items()) if isinstance(rows, dict) else list(enumerate(rows, 1))


def _layers(pages: Any) -> list[list[Row]]:
    """Rows by layer and slot."""
    blocks = [pages[block] for block in sorted(pages)]
    return [[rows[offset][layer] for rows in blocks for offset in sorted(rows)] for layer in LAYERS]


def _rank_of_tlc(v: Variables, name: str, page_rows: int) -> View:
    def of(variable: str) -> Any:
        return v.of(variable)[name]

    phase, table, issued, reached = _PHASES.get(of("pc"), of("pc")), of("table"), of("issued"), of("reached")
    if phase == "copied" and not asked(v, of("at"))["copies"]:
        phase = "met"
    hot = of("hot")
    return {
        "phase": phase,
        "step": of("at"),
        "event": EVENTS.index(of("current")),
        "landed": [reached[event] == issued[event] for event in EVENTS],
        "dirty": phase in _HANDS_ON and of("dirty"),
        "forward stream": [_given(each, issued) for each in of("compute") if each[0] in ("wait", "restore")],
        "copy stream": _queued(of("copies"), page_rows),
        "pages": _layers(of("dev")),
        "hot": hot_of(table, page_rows),
        **{f"hot row {block * page_rows + offset}": hot[block, offset] for block, offset in table - of("missing")},
        "stale": sorted(of("stale")),
        "after": [each["id"] for each in of("after")],
        "rows": _mirrored(of("rows"), page_rows) if phase in ("started", "forward") else None,
    }


def _given(each: Any, issued: Any) -> tuple[Any, ...]:
    if each[0] == "restore":
        return ("restore", each[1], each[2])
    return ("wait", EVENTS.index(each[1]), each[2] == issued[each[1]])


def _queued(queue: Iterable[Any], page_rows: int) -> list[Any]:
    """What is to land together, and the transfers that end behind it."""
    found: list[Any] = []
    rows: list[tuple[int, int, int]] = []
    for what, *rest in queue:
        if what == "copy":
            layer, db, hb, offset = rest
            rows.append((LAYERS.index(layer), hb * page_rows + offset, db * page_rows + offset))
        elif what == "record":
            found.append(sorted(rows))
            rows = []
        elif what == "end":
            found.append(rest[0])
    return found


def _mirrored(rows: Iterable[Any], page_rows: int) -> list[tuple[int, int]]:
    return [(x["hb"] * page_rows + x["off"], x["db"] * page_rows + x["off"]) for x in rows]


# -------------------------------------------------------------------- the checker's


def seen_by_checker(machine: NamedRows) -> View:
    """The same as the in-process checker has it."""
    s, names = machine.s, machine.names
    view: View = {
        "host": [_rows(of_layer, names) for of_layer in s.host],
        "truth": _rows(s.truth, names),
        "ended": sorted(s.acked),
        "rejected": sorted(names[version] for version in s.rejected),
        "wanted": {each: _rows(versions, names) for each, (_, versions) in sorted(s.wanted.items())},
        "enqueued": sorted(s.rank(0).enqueued),
    }
    for number, rank in sorted(s.ranks.items()):
        view |= {f"{what} of rank {number}": found for what, found in _rank_of(rank, machine).items()}
    return view


def _rows(versions: Any, names: Names) -> list[Row]:
    return [names[version] for version in versions.tolist()]


def _rank_of(rank: Rank, machine: NamedRows) -> View:
    names, group, fetched = machine.names, rank.hot[0][0], rank.hot_rows[0]
    return {
        "phase": rank.phase,
        "step": rank.at,
        "event": rank.current,
        "landed": [rank.reached[event] == rank.issued[event] for event in (0, 1)],
        "dirty": rank.phase in _HANDS_ON and rank.dirty,
        "forward stream": [_item(each, rank, machine) for each in rank.compute if each[0] in ("wait", "restore")],
        "copy stream": [
            _copied(each[1]) if each[0] == "copy" else each[1] for each in rank.copies if each[0] != "record"
        ],
        "pages": [_rows(of_layer, names) for of_layer in rank.dev],
        "hot": group,
        **{f"hot row {slot}": names[fetched.get((0, slot), 0)] for slot in group},
        "stale": sorted(rank.stale),
        "after": [each["transfer_id"] for each in rank.after],
        "rows": machine.placed(rank, 0) if rank.phase in ("started", "forward") else None,
    }


def _item(each: tuple[Any, ...], rank: Rank, machine: NamedRows) -> tuple[Any, ...]:
    if each[0] == "restore":
        host, device = each[1][0]
        return ("restore", int(host[0]) // machine.page_rows, int(device[0]) // machine.page_rows)
    return ("wait", each[1], each[2] == rank.issued[each[1]])


def _copied(copy: Copy) -> list[tuple[int, int, int]]:
    """Layer, host slot and device slot of each row."""
    return sorted(
        (layer, host, device)
        for layer, (hosts, devices) in copy.pieces.items()
        for host, device in zip(hosts.tolist(), devices.tolist(), strict=True)
    )
