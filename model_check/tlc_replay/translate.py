"""Events of the code in the words of the specification, numbered as the specification counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from palimpsest.trace import Event

from .drains import enter_before_records
from .literals import literal, set_of
from .selection import Step, as_list, shares
from .wording import STATUS, Record, Words

_SWITCHES = ("CanLag", "CanStall", "CanAbort", "CanSkip", "CanDrop", "CanFail", "CanReset", "CanShutdown")
_STAND_INS = {
    "Blocks": "TraceBlocks", "Schedules": "NoSchedule", "Overtaken": "OvertakenHere", "CanTake": "CanTakeHere",
    "Cost": "CostHere",
}  # fmt: skip


@dataclass
class TlcTrace:
    """A trace as TLC reads it, and the constants that it needs."""

    module: ClassVar[str] = "TraceReplay"

    name: str
    whole: bool
    plans: list[Record]
    events: list[Record]
    num_blocks: int
    block_size: int
    pages: int
    budget: int
    requests: set[str]
    immediate: set[str]
    deferred: set[str]
    #: the events of the code's trace, and how many of them touch what is replayed
    of: int
    touching: int

    @property
    def bounds(self) -> tuple[int, ...]:
        """What traces of one run must share."""
        return self.block_size, self.num_blocks, self.pages, self.budget

    @property
    def scope(self) -> str:
        """What of the code's trace this is."""
        if self.whole:
            return f"the whole trace of {self.of:,}"
        if len(self.events) < self.touching:
            return f"the first of {self.touching:,} that touch them, of {self.of:,}"
        return f"all that touch them, of {self.of:,}"

    def record(self) -> Record:
        """What stands in the file."""
        return {"name": self.name, "whole": self.whole, "plans": self.plans, "events": self.events}

    @staticmethod
    def definitions(traces: Sequence[TlcTrace]) -> list[str]:
        """What TraceFile defines besides the traces."""
        return [f"BlockSize == {traces[0].block_size}"]

    @staticmethod
    def configuration(traces: Sequence[TlcTrace]) -> tuple[dict[str, object], dict[str, str]]:
        """Constants for all of `traces`, and definitions that stand for others."""
        first = traces[0]
        named = {
            "Requests": set().union(*(trace.requests for trace in traces)),
            "Immediate": set().union(*(trace.immediate for trace in traces)),
            "Deferred": set().union(*(trace.deferred for trace in traces)),
        }
        constants: dict[str, object] = {
            "Slots": set_of(range(first.block_size * first.num_blocks)),
            **{name: set_of(map(literal, sorted(values))) for name, values in named.items()},
            "Hidden": set_of([literal("__hidden_states__")]),
            "Pages": set_of(range(1, first.pages + 1)),
            "Budget": first.budget,
            "Readers": '{"prefetch", "builder"}',
            **dict.fromkeys(_SWITCHES, "TRUE"),
        }
        return constants, _STAND_INS


def translate(name: str, config: dict[str, Any], events: Sequence[Event], blocks: Collection[int] | None) -> TlcTrace:
    """`events` as TLC reads them; with `blocks`, the projection on those."""
    return _Translation(config, events, blocks).run(name)


class _Translation(Words):
    """One pass over a trace; a method for each action that gives what its event says, or None to leave it out."""

    def run(self, name: str) -> TlcTrace:
        """The whole translation."""
        translated = []
        for event in self._events:
            action: Callable[[Event], Record | None] = getattr(self, f"_{event.action}")
            said = action(event)
            if said is not None:
                thread = said.pop("thread", None) or self._roles.of(event)
                translated.append({"action": event.action, "seq": event.seq, "thread": thread, **said})
        enter_before_records(translated)
        chosen, config = self._chosen, self._config
        return TlcTrace(
            name, chosen.whole, self._plans, translated, chosen.num_blocks, chosen.block_size, config["pages"],
            config["budget_bytes"] if chosen.whole else 0, set(self._names.given) or {"none"},
            self._immediate, self._deferred, len(self._events), len(translated),
        )  # fmt: skip

    # ---------------------------------------------------------------- steps

    def _begin_step(self, event: Event) -> Record | None:
        step = self._step = self._chosen.step_of(event)
        self._saving = bool(step.order)
        self._lives.end(event.args["ended"])
        ended = [request for request in event.args["ended"] if request in self._chosen.requests]
        given = [block for block in as_list(event.args["allocated"]) if self._chosen.has_block(int(block))]
        if not (self._chosen.whole or step.order or step.hits or ended or given):
            self._step = None
            return None
        self._plans.append(self._plan(step, ended, [slot for block in given for slot in self._chosen.slots_of(block)]))
        return {
            "dropped": self._hits_of(event.post["dropped"]),
            "sealed": self._tids.of(event.post["sealed"]),
            "reads": self._planned(event.post["reads"]),
            "retired": self._snapshot(event.post["retired"]),
        }

    def _plan(self, step: Step, ended: list[str], given: list[int]) -> Record:
        name = self._names.of
        plan: Record = {"ended": [name(request) for request in ended], "given": given, "rows": [], "keys": []}
        self._names.end(ended)
        plan["order"] = [name(request) for request in step.order]
        plan["hits"] = [{"request": name(request), "slots": slots} for request, slots in step.hits.items()]
        plan["known"] = list(self._known)
        plan["again"] = [name(request) for request in self._chosen.overtaken(step)]
        if step.publish is not None:
            plan["keys"] = [*step.publish.args["immediate"], *step.publish.args["deferred"]]
            plan["rows"] = [
                self._share(step.publish, request, rows)
                for request, rows in shares(step.publish)
                if request in step.order
            ]
        return plan

    def _share(self, publish: Event, request: str, rows: np.ndarray) -> Record:
        slots, tenants = as_list(publish.args["slots"]), publish.post["slots"]["tenant"]
        mine = [(int(tenants[i]), at) for i in rows.tolist() if (at := self._chosen.slot(slots[i])) is not None]
        return {
            "request": self._names.of(request),
            "slots": [at for _, at in mine],
            "positions": [self._position(*row) for row in mine],
        }

    def _position(self, tenant: int, slot: int) -> int:
        """A position of the generation for the slot: the trace has none, and one for each slot does as well."""
        return self._positions[tenant].new(slot)

    def _publish(self, event: Event) -> Record | None:
        self._known.update(dict.fromkeys([*event.args["immediate"], *event.args["deferred"]]))
        step = self._step
        if step is None or not step.order:
            self._saving = False
            return None
        self._saving = False
        said = {request: i for i, (request, _) in enumerate(shares(event)) if request in step.order}
        self._number_tenants(event, step.order)
        immediate = [self._tids.new(event.post["tids"][i]) for i in said.values()] if event.post["tids"] else []
        before = set(self._tids.known)
        taking = [event.post["takers"][i] for i in said.values()] if event.post["takers"] else []
        opened = [self._tids.new(tid) for tid in taking if tid not in before]
        retired = [at for slot in as_list(event.post["retired"]) if (at := self._chosen.slot(slot)) is not None]
        return {
            "step": self._steps.known[event.args["step"]],
            "page": event.args["page"] + 1,
            "preserved": self._preserved(event),
            "dropped": self._hits_of(event.post["dropped"]),
            "tids": immediate,
            "takers": [
                {"request": self._names.of(r), "tid": tid} for r, tid in zip(said, self._tids.of(taking), strict=False)
            ],
            "opened": opened,
            "closed": self._tids.of(event.post["closed"]),
            "lost": [row for lost in event.post["lost"] for row in self._lost(lost)],
            "retired": retired,
            "reads": self._planned(event.post["reads"]),
            "claimed": self._snapshot(event.post["slots"]),
            "holders": self._holders(event.post["holders"]),
        }

    def _number_tenants(self, event: Event, order: Collection[str]) -> None:
        for request, rows in shares(event):
            if request in order and rows.size:
                self._tenants[int(event.post["slots"]["tenant"][rows[0]])] = self._lives.of(request)

    def _preserved(self, event: Event) -> list[list[Any]]:
        kept = []
        for entry in event.post["preserved"]:
            if entry["read"] in self._hits:
                mine = self._rows_of_read[entry["read"]]
                kept += [
                    [self._hits[entry["read"]], mine.index(row) + 1] for row in as_list(entry["rows"]) if row in mine
                ]
        return kept

    def _lost(self, lost: dict[str, Any]) -> list[list[Any]]:
        tid = self._tids.known.get(lost["tid"])
        places = [self._chosen.slot(slot) for slot in as_list(lost["slots"])]
        return [[tid, [at, lost["key"]]] for at in places if at is not None] if tid is not None else []

    def _take_step(self, event: Event) -> Record | None:
        if event.args["step"] not in self._steps.known:
            return None
        return {"step": self._steps.known[event.args["step"]], "steps": self._steps.of(event.post["steps"])}

    def _discard_step(self, event: Event) -> Record | None:
        taken = self._take_step(event)
        return None if taken is None else {**taken, "dropped": self._hits_of(event.post["dropped"])}

    def _reset(self, event: Event) -> Record:
        self._lives.renew()
        return {"sealed": self._tids.of(event.post["sealed"])}

    def _shutdown_begin(self, event: Event) -> Record:
        return {}

    def _shutdown_end(self, event: Event) -> Record:
        return {"dropped": self._hits_of(event.post["dropped"]), "steps": self._steps.of(event.post["steps"])}

    # ---------------------------------------------------------------- reads

    def _begin_fetch(self, event: Event) -> Record | None:
        read = event.args["read"]
        return {"hit": self._hits[read]} if read in self._hits else None

    def _end_fetch(self, event: Event) -> Record | None:
        read = event.args["read"]
        if read not in self._hits:
            return None
        mine = self._rows_of_read[read]
        preserved = [mine.index(row) + 1 for row in as_list(event.post["preserved"]) if row in mine]
        return {"hit": self._hits[read], "preserved": preserved, "pending": self._pending(event.post)}

    def _drop_read(self, event: Event) -> Record | None:
        hits = self._hits_of(event.args["reads"])
        return {"hits": hits, "pending": self._pending(event.post)} if hits else None

    # ---------------------------------------------------------------- tasks

    def _drain(self, event: Event) -> Record | None:
        written, failed = self._tids.of(event.post["written"]), self._tids.of(event.post["failed"])
        if not (written or failed):
            return None
        thread = self._roles.of(event)
        if not (self._chosen.whole or self._is_kept(self._roles.cause_of(event))):
            thread = "elsewhere"
        return {
            "thread": thread,
            "written": written,
            "failed": failed,
            "status": [self._status(e) for e in event.post["status"]],
        }

    def _is_kept(self, cause: Event | None) -> bool:
        """Whether the action that a drain is the first part of is replayed."""
        match cause.action if cause is not None else "":
            case "begin_step":
                assert cause is not None
                step = self._chosen.step_of(cause)
                ended = any(request in self._chosen.requests for request in cause.args["ended"])
                given = any(self._chosen.has_block(int(block)) for block in as_list(cause.args["allocated"]))
                return bool(step.order or step.hits or ended or given)
            case "publish":
                return self._saving
            case "take_step":
                assert cause is not None
                return cause.args["step"] in self._steps.known
            case "shutdown_end" | "reset":
                return True
        return False

    def _status(self, entry: dict[str, Any]) -> Record:
        rows = [
            (at, int(status))
            for slot, status in zip(as_list(entry["slots"]), as_list(entry["status"]), strict=True)
            if (at := self._chosen.slot(slot)) is not None
        ]
        return {"key": entry["key"], "slots": [at for at, _ in rows], "status": [STATUS[status] for _, status in rows]}

    def _in_save(self, said: Record | None) -> Record | None:
        """What the engine does while it saves a step that is replayed."""
        return said if self._saving else None

    def _seal_oldest(self, event: Event) -> Record | None:
        if not self._chosen.whole:
            return None
        return self._in_save({name: self._tids.of(event.post[name]) for name in ("sealed", "flushed")})

    def _dispatch(self, event: Event) -> Record | None:
        return self._with_queues(event)

    def _escalate(self, event: Event) -> Record | None:
        return self._with_queues(event)

    def _claim_copy(self, event: Event) -> Record | None:
        return self._with_queues(event)

    def _join_begin(self, event: Event) -> Record | None:
        if self._roles.of(event) == "engine" and not (
            self._saving and (self._chosen.whole or self._roles.joins_last(event))
        ):
            return None
        return self._with_states(event)

    _join_end = _join_begin

    def _reserve(self, event: Event) -> Record | None:
        nbytes, fits, charged = int(event.args["nbytes"]), bool(event.args["fits"]), int(event.post["staged_bytes"])
        if not self._chosen.whole:
            if not (fits and self._step is not None and self._step.publish is not None and self._rows_here()):
                return None
            nbytes = 0
        return self._in_save({"size": nbytes, "fits": fits, "charged": charged})

    def _rows_here(self) -> bool:
        """Whether the step that is saved has selected rows of deferred keys."""
        plan = self._plans[-1]
        return any(share["slots"] for share in plan["rows"]) and any(key in self._deferred for key in plan["keys"])

    def _unreserve(self, event: Event) -> Record | None:
        return self._in_save({"charged": int(event.post["staged_bytes"])})

    def _host_ready(self, event: Event) -> Record | None:
        return self._with_tids(event, tasks=self._states(event.post), charged=int(event.post["staged_bytes"]))

    _fail = _host_ready

    def _begin_pool_write(self, event: Event) -> Record | None:
        rows = [
            [self._tids.known[int(tid)], [at, write["key"]]]
            for write in event.post["rows"]
            for slot, tid in zip(as_list(write["slots"]), as_list(write["tids"]), strict=True)
            if (at := self._chosen.slot(slot)) is not None
        ]
        return self._with_tids(event, rows=rows)

    def _complete(self, event: Event) -> Record | None:
        return self._with_tids(
            event, completed=self._tids.of(event.post["completed"]), failed=self._tids.of(event.post["failed"])
        )

    _record_failure = _complete

    def _wake(self, event: Event) -> Record | None:
        return self._with_states(event)

    # ---------------------------------------------------------------- pages

    def _overwrite_live(self, event: Event) -> Record | None:
        """A forward happens by itself, as late as it can: its rows are not in the trace."""
        return None

    def _claim_page_begin(self, event: Event) -> Record | None:
        return self._in_save({"step": self._steps.new(int(event.args["holder"][1]))}) if self._saving else None

    def _claim_page_end(self, event: Event) -> Record | None:
        return self._in_save({"page": event.args["page"] + 1, "holders": self._holders(event.post["holders"])})

    def _freeze(self, event: Event) -> Record | None:
        if event.args["step"] not in self._steps.known or self._step is None:
            return None
        self._frozen[event.args["step"]] = self._step
        return {"page": event.args["page"] + 1, "step": self._steps.known[event.args["step"]]}

    def _copy_lands(self, event: Event) -> Record | None:
        step = self._frozen.get(event.args["step"])
        if step is None or step.publish is None or not event.args["keys"]:
            return None
        return {"page": event.args["page"] + 1} if self._has_rows_on_page(step) else None

    def _has_rows_on_page(self, step: Step) -> bool:
        assert step.publish is not None
        slots = as_list(step.publish.args["slots"])
        mine = (i for request, rows in shares(step.publish) if request in step.order for i in rows.tolist())
        return bool(step.publish.args["immediate"]) and any(self._chosen.slot(slots[i]) is not None for i in mine)

    def _release_page(self, event: Event) -> Record | None:
        left = self._holders(event.args["left"])
        if not left:
            return None
        return {"page": event.args["page"] + 1, "left": left, "holders": self._holders(event.post["holders"])}
