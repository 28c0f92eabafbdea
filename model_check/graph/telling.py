# ruff: noqa: ARG001  what tells a step is given both states and the checker, and need not use all
"""A step of the specification as the event that the code would log of it.

The specification has sets where the code has lists in the order of its tables; those orders are the checker's own.
Rows carry no identities here. Steps that the code logs no event of have none: rows on their way, waits that raise,
drains that find nothing, a read that is let go of when it is over already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from palimpsest.trace import Event

from ..replay.machine import Machine
from .dump import State
from .variables import Variables, code_name

Args = dict[str, Any]
#: thread, args, post
Told = tuple[str, Args, Args]

STATUS = {"ABSENT": 0, "IN_TRANSIT": 1, "COMMITTED": 2}
SOURCE = {"pool": 0, "staged": 1, "absent": 2}
OPEN = ("pending", "fetching")


class Numbered(Machine):
    """The in-process checker, with the number that each planned read was given: by hit and try."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.numbers: dict[Any, int] = {}

    def rid(self, hit: Any, read: Args) -> int:
        """The number of a read; a new one for a read that is not known."""
        return self.numbers.setdefault((hit, read["try"]), len(self.numbers) + 1)


def integers(values: Iterable[int]) -> np.ndarray:
    """An array of slots, versions or tasks."""
    return np.array(list(values), dtype=np.int64)


def told(action: str, before: State, after: State, machine: Numbered) -> list[Event]:
    """The events of a step from `before` to `after`, where the checker is in the state of `machine`: one, or none. (A
    freeze of no rows is reported as landed at once.)"""
    tell: Callable[[Variables, Variables, Numbered], Told | None] | None = globals().get(f"_{code_name(action)}")
    said = tell(Variables(before), Variables(after), machine) if tell is not None else None
    if said is None:
        return []
    event = Event(0, said[0], code_name(action), said[1], said[2])
    landed = action == "Freeze" and not event.args["keys"]
    return [event, event._replace(thread="device", action="copy_lands")] if landed else [event]


# -------------------------------------------------------------------- what many say


def _changed(name: str, s: Variables, t: Variables) -> str:
    """The thread whose entry of a variable changes."""
    was, now = s.of(name), t.of(name)
    return next((str(thread) for thread in was if was[thread] != now[thread]), "")


def _queues(t: Variables) -> Args:
    return {"hi": list(t["hi"]), "lo": list(t["lo"])}


def _records(t: Variables) -> Args:
    return {"completed": list(t["completed"]), "failed": list(t["failures"])}


def _states(tids: Iterable[int], t: Variables, m: Numbered) -> Args:
    tasks = t.of("tasks")
    return {"tasks": {tid: tasks[tid]["state"] if tid in tasks else m.s.drained.get(tid, "") for tid in tids}}


def pending(t: Variables) -> dict[Any, Args]:
    """The reads that are not over."""
    return {hit: read for hit, read in t.of("reads").items() if read["st"] in OPEN}


def _over(s: Variables, t: Variables, m: Numbered) -> list[int]:
    """The reads that were pending and are over now, or planned again."""
    was, now = pending(s), t.of("reads")
    gone = [h for h in was if h not in now or now[h]["st"] == "over" or now[h]["try"] != was[h]["try"]]
    return sorted(m.rid(hit, was[hit]) for hit in gone)


def _planned(s: Variables, t: Variables, m: Numbered) -> list[Args]:
    was, now = s.of("reads"), t.of("reads")
    new = sorted(hit for hit in now if hit not in was or now[hit]["try"] != was[hit]["try"])
    return [
        {
            "read": m.rid(hit, now[hit]), "request": hit[1], "key": hit[2], "slots": integers(now[hit]["slots"]),
            "versions": integers(now[hit]["ver"]), "joins": sorted(now[hit]["joins"]),
            "sources": np.array([SOURCE[each] for each in now[hit]["src"]], dtype=np.int8),
        }
        for hit in new
    ]  # fmt: skip


def _slots(t: Variables, slots: list[int]) -> Args:
    tenant, version, status, writer = (t.of(name) for name in ("tenant", "version", "status", "writer"))
    keys = {
        key: {
            "version": integers(version[slot, key] for slot in slots),
            "status": np.array([STATUS[status[slot, key]] for slot in slots], dtype=np.int8),
            "writer": integers(writer[slot, key] for slot in slots),
        }
        for key in sorted(t["known"])
    }
    return {"slots": integers(slots), "tenant": integers(tenant[slot] for slot in slots), "keys": keys}


def _sealed(s: Variables, t: Variables, m: Numbered) -> list[int]:
    """Open tasks that take no more rows now, in the order of the checker's table."""
    was, now = s.of("openTask"), t.of("openTask")
    gone = {was[request] for request in was if was[request] and now[request] != was[request]}
    return [tid for tid in m.s.deferred.values() if tid in gone]


# -------------------------------------------------------------------- steps


def _drain(s: Variables, t: Variables, m: Numbered) -> Told | None:
    written, failed = list(s["completed"]), list(s["failures"])
    if not written and not failed:
        return None
    status = t.of("status")
    landings = {id(m.s.tasks[tid].landing): m.s.tasks[tid].landing for tid in written}.values()
    rows = [
        {"key": key, "slots": each.slots, "status": integers(STATUS[status[slot, key]] for slot in each.slots.tolist())}
        for landing in landings
        for key, each in (landing or {}).items()
    ]
    thread = t.of("lock")["state"]
    if thread == "nobody":
        thread = "engine" if s["eng"] != t["eng"] or t["eng"]["pc"] == "frozen" else "builder"
    return thread, {}, {"written": written, "failed": failed, "status": rows}


def _begin_step(s: Variables, t: Variables, m: Numbered) -> Told:
    plan = t["begun"]["plan"]
    sealed = [tid for tid in m.s.deferred.values() if tid in t["eng"]["up"]]
    ended = sorted(
        plan["ended"], key=lambda request: list(m.s.deferred).index(request) if request in m.s.deferred else 0
    )
    hits = [{"request": request, "blocks": list(slots)} for request, slots in sorted(plan["hits"].items()) if slots]
    args = {"ended": ended, "hits": hits, "allocated": sorted(plan["given"])}
    post = {"dropped": _over(s, t, m), "sealed": sealed, "reads": _planned(s, t, m)}
    return "engine", args, {**post, "retired": _slots(t, sorted(plan["given"]))}


def _seal_oldest(s: Variables, t: Variables, m: Numbered) -> Told:
    flushed = [tid for tid in m.s.tasks if tid in t["eng"]["up"]]
    sealed = _sealed(s, t, m)
    return "engine", {}, {"sealed": sealed, "flushed": sealed or flushed}


def _publish(s: Variables, t: Variables, m: Numbered) -> Told:
    plan, step, page = s["begun"]["plan"], s["eng"]["step"], s["eng"]["page"]
    order = list(plan["order"])
    slots = {request: [slot for _, slot in sorted(plan["rows"][request])] for request in order}
    claimed = [slot for request in order for slot in slots[request]]
    was, now, opened = s.of("tasks"), t.of("tasks"), t.of("openTask")
    new = [tid for tid in sorted(now) if tid not in was]
    immediate = sorted(plan["keys"] & s.immediate)
    late = sorted(plan["keys"] - s.immediate)
    lost = sorted(
        (tid, cell[1], cell[0])
        for tid in now
        for cell in now[tid]["lost"]
        if tid not in was or cell not in was[tid]["lost"]
    )
    kept = [
        {
            "read": m.rid(hit, read),
            "rows": integers(i for i, row in enumerate(now_read["kept"]) if row != read["kept"][i]),
        }
        for hit, read in pending(s).items()
        if (now_read := t.of("reads")[hit])["try"] == read["try"] and now_read["kept"] != read["kept"]
    ]
    args = {
        "step": step, "page": page - 1, "requests": order, "counts": [len(slots[request]) for request in order],
        "slots": integers(claimed), "immediate": immediate, "deferred": late, "nbytes": s["eng"]["reserved"],
    }  # fmt: skip
    post = {
        "preserved": kept, "dropped": _over(s, t, m), "retired": integers([]),
        "tids": [tid for tid in new if not now[tid]["late"]],
        "takers": [opened[request] for request in order] if late else [],
        "opened": [tid for tid in new if now[tid]["late"]],
        "closed": [tid for tid in _sealed(s, t, m) if was[tid]["state"] == "PENDING"],
        "lost": [
            {"tid": tid, "key": key, "slots": integers(at for task, of, at in lost if (task, of) == (tid, key))}
            for tid, key in sorted({(tid, key) for tid, key, _ in lost})
        ],
        "reads": _planned(s, t, m), "slots": _slots(t, claimed), "holders": sorted(t.of("holders")[page]),
    }  # fmt: skip
    return "engine", args, post


def _take_step(s: Variables, t: Variables, m: Numbered) -> Told:
    return "builder", {"step": t["bld"]["step"]}, {"steps": sorted(t.of("steps"))}


def _discard_step(s: Variables, t: Variables, m: Numbered) -> Told:
    return "builder", {"step": t["bld"]["step"]}, {"dropped": _over(s, t, m), "steps": sorted(t.of("steps"))}


def _reset(s: Variables, t: Variables, m: Numbered) -> Told:
    return "engine", {}, {"sealed": _sealed(s, t, m)}


def _shutdown_begin(s: Variables, t: Variables, m: Numbered) -> Told:
    return "closer", {}, {}


def _shutdown_end(s: Variables, t: Variables, m: Numbered) -> Told:
    return "closer", {}, {"dropped": _over(s, t, m), "steps": sorted(s.of("steps"))}


# -------------------------------------------------------------------- reads


def _begin_fetch(s: Variables, t: Variables, m: Numbered) -> Told:
    thread = _changed("rdr", s, t)
    hit = t.of("rdr")[thread]["hit"]
    return thread, {"read": m.rid(hit, t.of("reads")[hit])}, {"fetching": True}


def _end_fetch(s: Variables, t: Variables, m: Numbered) -> Told:
    thread = _changed("rdr", s, t)
    hit = s.of("rdr")[thread]["hit"]
    read, version = s.of("reads")[hit], s.of("version")
    pool = [i for i, source in enumerate(read["src"]) if source == "pool"]
    kept = [i for i in pool if read["kept"][i][2] != "nothing"]
    moved = [i for i in pool if version[read["slots"][i], hit[2]] != read["ver"][i]]
    rows = kept if kept == pool else moved
    return thread, {"read": m.rid(hit, read)}, {"preserved": rows, "tags": None, "pending": len(pending(t))}


def _drop_read(s: Variables, t: Variables, m: Numbered) -> Told | None:
    gone = _over(s, t, m)
    return (_changed("rdr", s, t) or "builder", {"reads": gone}, {"pending": len(pending(t))}) if gone else None


# -------------------------------------------------------------------- tasks


def _dispatch(s: Variables, t: Variables, m: Numbered) -> Told:
    return "engine", {"tids": [tid for tid in t["lo"] if tid not in s["lo"]]}, _queues(t)


def _escalate(s: Variables, t: Variables, m: Numbered) -> Told | None:
    raised = [tid for tid in t["hi"] if tid not in s["hi"]]
    return ("engine", {"tids": raised}, _queues(t)) if raised else None


def _join_begin(s: Variables, t: Variables, m: Numbered) -> Told | None:
    thread = _changed("rdr", s, t) or "engine"
    tids = sorted(t["eng"]["wait"] if thread == "engine" else t.of("rdr")[thread]["wait"])
    return (thread, {"tids": tids}, _states(tids, t, m)) if tids else None


def _join_end(s: Variables, t: Variables, m: Numbered) -> Told | None:
    thread = _changed("rdr", s, t) or "engine"
    tids = sorted(s["eng"]["wait"] if thread == "engine" else s.of("rdr")[thread]["wait"])
    return (thread, {"tids": tids}, _states(tids, t, m)) if tids and set(tids) <= s["woken"] else None


def _reserve(s: Variables, t: Variables, m: Numbered) -> Told:
    plan = s["begun"]["plan"]
    fits = t["eng"]["pc"] == "reserved"
    late = plan["keys"] - s.immediate
    nbytes = sum(len(rows) for rows in plan["rows"].values()) * len(late)
    return "engine", {"nbytes": nbytes, "fits": fits}, {"staged_bytes": t["charged"]}


def _unreserve(s: Variables, t: Variables, m: Numbered) -> Told:
    return "engine", {"nbytes": s["eng"]["reserved"]}, {"staged_bytes": t["charged"]}


def _committer(s: Variables, t: Variables) -> tuple[str, list[int]]:
    thread = _changed("com", s, t)
    return thread, sorted(s.of("com")[thread]["tids"] | t.of("com")[thread]["tids"])


def _claim_copy(s: Variables, t: Variables, m: Numbered) -> Told:
    queue = [*s["hi"], *s["lo"]]
    return "committer", {"tids": [tid for tid in queue if tid in t.of("com")["committer"]["tids"]]}, _queues(t)


def _in_order(thread: str, tids: list[int], m: Numbered) -> list[int]:
    """The order in which a thread has its tasks."""
    writing = m.s.writing.get(thread)
    return writing.tids if writing is not None and sorted(writing.tids) == tids else tids


def _host_ready(s: Variables, t: Variables, m: Numbered) -> Told:
    thread, tids = _committer(s, t)
    tids = _in_order(thread, tids, m)
    return thread, {"tids": tids}, {**_states(tids, t, m), "staged_bytes": t["charged"]}


def _fail(s: Variables, t: Variables, m: Numbered) -> Told | None:
    thread, tids = _committer(s, t)
    return (thread, {"tids": tids}, {**_states(tids, t, m), "staged_bytes": t["charged"]}) if tids else None


def _begin_pool_write(s: Variables, t: Variables, m: Numbered) -> Told:
    thread, tids = _committer(s, t)
    todo = sorted((cell[1], cell[0], tid) for tid, cell in t.of("com")[thread]["todo"])
    rows = [
        {
            "key": key, "slots": integers(slot for of, slot, _ in todo if of == key),
            "tids": integers(tid for of, _, tid in todo if of == key), "tags": {},
        }
        for key in sorted({key for key, _, _ in todo})
    ]  # fmt: skip
    return thread, {"tids": _in_order(thread, tids, m)}, {"rows": rows}


def _recorded(s: Variables, t: Variables, m: Numbered) -> Told:
    thread, tids = _committer(s, t)
    return thread, {"tids": _in_order(thread, tids, m)}, _records(t)


_complete = _record_failure = _recorded


def _wake(s: Variables, t: Variables, m: Numbered) -> Told:
    thread, tids = _committer(s, t)
    tids = _in_order(thread, tids, m)
    return thread, {"tids": tids}, _states(tids, t, m)


# -------------------------------------------------------------------- pages and memory


def _claim_page_begin(s: Variables, t: Variables, m: Numbered) -> Told:
    return "engine", {"holder": ("step", t["eng"]["step"])}, {}


def _claim_page_end(s: Variables, t: Variables, m: Numbered) -> Told | None:
    page = t["eng"]["page"]
    holder = ("step", t["eng"]["step"])
    return ("engine", {"holder": holder, "page": page - 1}, {"holders": [holder]}) if page else None


def _copied(s: Variables, page: int, step: int, m: Numbered) -> Args:
    keys = sorted({key for (_, key), row in s.of("onWay")[page][0].items() if row[2] != "garbage"})
    return {"step": step, "page": page - 1, "keys": keys}


def _freeze(s: Variables, t: Variables, m: Numbered) -> Told:
    page, step = t["eng"]["page"], t["eng"]["step"]
    onway = t.of("onWay")[page]
    args = _copied(t, page, step, m) if onway else {"step": step, "page": page - 1, "keys": []}
    return "engine", args, {"tags": {}}


def _copy_lands(s: Variables, t: Variables, m: Numbered) -> Told | None:
    page = next(page for page, copies in s.of("onWay").items() if copies != t.of("onWay")[page])
    if not s.of("holders")[page]:
        return None  # nobody is left who would see it
    return "device", _copied(s, page, m.s.frozen[page - 1].step if page - 1 in m.s.frozen else 0, m), {"tags": {}}


def _overwrite_live(s: Variables, t: Variables, m: Numbered) -> Told:
    return "device", {}, {}


def _release_page(s: Variables, t: Variables, m: Numbered) -> Told | None:
    was, now = s.of("holders"), t.of("holders")
    page = next((page for page in was if was[page] != now[page]), None)
    if page is None:
        return None
    thread = "engine" if s["eng"] != t["eng"] else "builder" if s["bld"] != t["bld"] else _changed("com", s, t)
    left = sorted(was[page] - now[page])
    if not thread:
        thread = next(w for w, com in s.of("com").items() if {number for _, number in left} <= com["tids"])
    return thread, {"page": page - 1, "left": left}, {"holders": sorted(now[page])}
