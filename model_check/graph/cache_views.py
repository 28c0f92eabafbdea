"""What both checkers have of a state of the prefix cache."""

from __future__ import annotations

from typing import Any

from .dump import State
from .telling import STATUS, Numbered, pending
from .variables import Variables

View = dict[str, Any]


def seen_by_tlc(state: State) -> View:
    """What both checkers have of a state, as TLC has it."""
    t = Variables(state)
    known, com = t["known"], t.of("com")
    cells = [cell for cell in sorted(t.of("version")) if cell[1] in known]
    tasks, reads = t.of("tasks"), pending(t)
    return {
        "tenant": list(t.of("tenant").values()),
        "version": [t.of("version")[cell] for cell in cells],
        "status": [STATUS[t.of("status")[cell]] for cell in cells],
        "writer": [t.of("writer")[cell] for cell in cells],
        "tasks": {tid: (task["state"], task["late"]) for tid, task in tasks.items()},
        "lost": {tid: sorted(task["lost"] & task["rows"]) for tid, task in tasks.items() if task["state"] == "PENDING"},
        "queues": (list(t["hi"]), list(t["lo"])),
        "records": (list(t["completed"]), list(t["failures"])),
        "charged": t["charged"],
        "holders": [sorted(who) for who in t.of("holders").values()],
        "steps": {step: page - 1 for step, page in t.of("steps").items()},
        "reads": sorted((hit[1], hit[2], list(read["slots"]), read["st"] == "fetching") for hit, read in reads.items()),
        "kept": sorted((hit[1], hit[2], [row[2] != "nothing" for row in read["kept"]]) for hit, read in reads.items()),
        "live": {request: generation for request, generation in t.of("liveGen").items() if generation},
        "open": {request: tid for request, tid in t.of("openTask").items() if tid},
        "writing": sorted(com["committer"]["tids"]) if com["committer"]["pc"] in ("writing", "ready") else None,
        "flags": (t["failed"], t["closed"]),
    }


def seen_by_checker(machine: Numbered) -> View:
    """The same as the in-process checker has it."""
    s = machine.s
    slots = range(s.num_slots)
    cells = sorted((slot, key) for slot in slots for key in s.keys)
    committer = s.writing.get("committer")
    hits = {number: hit for (hit, _), number in machine.numbers.items()}
    reads = [(hits[rid], read) for rid, read in s.reads.items()]
    return {
        "tenant": s.tenant.tolist(),
        "version": [int(s.keys[key].version[slot]) for slot, key in cells],
        "status": [int(s.keys[key].status[slot]) for slot, key in cells],
        "writer": [int(s.keys[key].writer[slot]) for slot, key in cells],
        "tasks": {tid: (task.state, task.deferred) for tid, task in sorted(s.tasks.items())},
        "lost": {
            tid: sorted({(int(slot), key) for key in task.lost for slot in task.lost_slots(key)})
            for tid, task in sorted(s.tasks.items())
            if task.state == "PENDING"
        },
        "queues": (list(s.hi), list(s.lo)),
        "records": (list(s.completed), list(s.failed)),
        "charged": s.staged_bytes,
        "holders": [sorted(who) for who in s.holders],
        "steps": {step: page for step, (page, _) in sorted(s.steps.items())},
        "reads": sorted((hit[1], hit[2], read.slots.tolist(), read.fetching) for hit, read in reads),
        "kept": sorted(
            (hit[1], hit[2], read.preserved.tolist() if read.preserved is not None else [False] * read.slots.size)
            for hit, read in reads
        ),
        "live": dict(sorted(s.live.items())),
        "open": dict(sorted(s.deferred.items())),
        "writing": sorted(committer.tids)
        if committer is not None and committer.stage in ("writing", "ready")
        else None,
        "flags": (s.failure, s.closed),
    }
