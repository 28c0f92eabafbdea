"""Both checkers on one graph: what TLC reaches, the in-process checker accepts, with the same states; what TLC has no
edge for, it refuses.

From each state that TLC reaches, the checker is given the event of each of its edges: it must accept it and come to
the state that TLC's edge leads to, as far as both have it (`seen_by_tlc`), whichever way it came there. Then it is
given, in states evenly spread, one event of each action that is possible elsewhere in the graph and not there, as it
was told elsewhere; what it takes of these is counted. It may take some: a model's switches forbid what the rules allow
(a save that is tried again), and some guards of the specification are checked at a later event of the code's.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from palimpsest.trace import Event

from ..manifest import Model
from ..replay.verdict import RejectedError
from .dump import Edge, Graph, State
from .telling import STATUS, Numbered, pending, told
from .variables import Variables

View = dict[str, Any]


@dataclass
class Comparison:
    """What was compared, and what differs."""

    model: str
    states: int = 0
    edges: int = 0
    #: edges of which the code logs no event: both stay where they are
    silent: int = 0
    #: what TLC has and the checker refuses, and where the two come to different states
    differences: list[str] = field(default_factory=list)
    #: by action: events given where TLC has no edge of that action, and how many of them the checker took
    given: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)

    @property
    def same(self) -> bool:
        """Whether each edge was accepted and led to the same state."""
        return not self.differences


def config_of(model: Model) -> dict[str, Any]:
    """What a trace of the code says first, for the bounds of `model`: blocks of one slot, a byte a row."""
    slots, pages = str(model.constants["Slots"]), str(model.constants["Pages"])
    return {
        "num_blocks": slots.count(",") + 1,
        "block_size": 1,
        "pages": pages.count(",") + 1,
        "budget_bytes": model.constants["Budget"],
        "eager": False,
    }


def compare(model: Model, graph: Graph, *, most: int = 20, foreign: int = 5000) -> Comparison:
    """Compare the two on `graph`; `most` differences are told. About `foreign` events are given where TLC has no edge,
    in states evenly spread."""
    done = Comparison(model.name, len(graph.states))
    machines = {number: Numbered(config_of(model)) for number in graph.initial}
    samples: dict[str, Event] = {}
    possible: dict[str, set[str]] = defaultdict(set)
    for edge in graph.breadth_first():
        done.edges += 1
        possible[edge.source].add(edge.action)
        machine = copy.deepcopy(machines[edge.source])
        says = _step(edge, graph, machine, samples, done)
        if says and len(done.differences) < most:
            done.differences.append(f"{edge.action}, state {edge.source}: {says}")
        machines.setdefault(edge.target, machine)
    every = 1 + len(machines) * len(samples) // foreign
    for number, machine in list(machines.items())[::every]:
        for action, event in samples.items():
            if action not in possible[number]:
                done.given[action] += 1
                done.taken[action] += _accepts(machine, event)
    return done


def _step(edge: Edge, graph: Graph, machine: Numbered, samples: dict[str, Event], done: Comparison) -> str | None:
    before, after = graph.states[edge.source], graph.states[edge.target]
    events = told(edge.action, before, after, machine)
    done.silent += not events
    for event in events:
        samples.setdefault(edge.action, event)
        try:
            machine.take(event)
        except RejectedError as refused:
            return f"refused: {refused.kind} {refused.name}: {refused.says}"
    return next(_differences(seen_by_tlc(after), seen_by_checker(machine)), None)


def _accepts(machine: Numbered, event: Event) -> bool:
    try:
        copy.deepcopy(machine).take(event)
    except RejectedError:
        return False
    return True


def _differences(spec: View, checker: View) -> Iterator[str]:
    yield from (
        f"{name}: TLC has {spec[name]}, the checker {checker[name]}" for name in spec if spec[name] != checker[name]
    )


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
