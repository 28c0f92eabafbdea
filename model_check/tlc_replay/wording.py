"""What an event says of slots, reads, tasks and pages, as the specification says and counts it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from palimpsest.trace import Event

from .numbering import Lives, Names, Numbers
from .roles import Roles
from .selection import Selection, Step, as_list

Record = dict[str, Any]

STATUS = ("ABSENT", "IN_TRANSIT", "COMMITTED")
SOURCES = ("pool", "staged", "absent")


class Words:
    """What has been seen of a trace so far, and what follows for the next event's words."""

    def __init__(self, config: dict[str, Any], events: Sequence[Event], blocks: Collection[int] | None) -> None:
        self._config, self._events = config, events
        self._names = Names()
        self._chosen = Selection(events, config["block_size"], blocks)
        self._roles = Roles(events)
        self._tids, self._steps, self._lives = Numbers(), Numbers(), Lives()
        self._tenants: dict[int, int] = {0: 0}
        self._hits: dict[int, list[Any]] = {}
        self._rows_of_read: dict[int, list[int]] = {}
        self._positions: defaultdict[int, Numbers] = defaultdict(Numbers)
        self._plans: list[Record] = []
        self._step: Step | None = None
        self._saving = False
        #: the step that each attempt of a save froze the rows of
        self._frozen: dict[int, Step] = {}
        #: the keys that were saved so far, in order
        self._known: dict[str, None] = {}
        saved = [step.publish.args for step in self._chosen.steps if step.publish is not None]
        self._immediate = {key for args in saved for key in args["immediate"]}
        self._deferred = {key for args in saved for key in args["deferred"]}

    def _snapshot(self, logged: dict[str, Any]) -> Record:
        slots = as_list(logged["slots"])
        here = [(i, at) for i, slot in enumerate(slots) if (at := self._chosen.slot(slot)) is not None]
        rows = [i for i, _ in here]
        return {
            "slots": [at for _, at in here],
            "tenants": [self._tenants.get(int(logged["tenant"][i]), 0) for i in rows],
            "keys": [
                {
                    "key": key,
                    "versions": [int(of["version"][i]) for i in rows],
                    "status": [STATUS[int(of["status"][i])] for i in rows],
                    "writers": [self._writer(int(of["writer"][i])) for i in rows],
                }
                for key, of in logged["keys"].items()
            ],
        }

    def _writer(self, tid: int) -> int:
        return self._tids.known.get(tid, 0)

    def _planned(self, logged: Iterable[dict[str, Any]]) -> list[Record]:
        return [read for entry in logged if (read := self._read(entry)) is not None]

    def _read(self, entry: dict[str, Any]) -> Record | None:
        slots = as_list(entry["slots"])
        rows = [i for i, slot in enumerate(slots) if self._chosen.slot(slot) is not None]
        if slots and not rows:
            return None
        hit = self._hits[entry["read"]] = [len(self._plans), self._names.of(entry["request"]), entry["key"]]
        self._rows_of_read[entry["read"]] = rows
        return {
            "hit": hit,
            "slots": [self._chosen.slot(slots[i]) for i in rows],
            "versions": [int(entry["versions"][i]) for i in rows],
            "sources": [SOURCES[int(entry["sources"][i])] for i in rows],
            "joins": self._tids.of(entry["joins"]),
        }

    def _hits_of(self, reads: Iterable[int]) -> list[list[Any]]:
        return [self._hits[read] for read in reads if read in self._hits]

    def _pending(self, post: dict[str, Any]) -> int:
        return int(post["pending"])

    def _holders(self, holders: Iterable[Any]) -> list[list[Any]]:
        numbers = {"step": self._steps, "task": self._tids}
        return [[kind, numbers[kind].known[int(n)]] for kind, n in holders if int(n) in numbers[kind].known]

    def _states(self, post: dict[str, Any]) -> list[Record]:
        known = self._tids.known
        return [{"tid": known[int(tid)], "state": state} for tid, state in post["tasks"].items() if int(tid) in known]

    def _with_tids(self, event: Event, **more: Any) -> Record | None:
        tids = self._tids.of(event.args["tids"])
        return {"tids": tids, **more} if tids else None

    def _queues(self, event: Event) -> Record:
        return {"hi": self._tids.of(event.post["hi"]), "lo": self._tids.of(event.post["lo"])}

    def _with_queues(self, event: Event) -> Record | None:
        return self._with_tids(event, **self._queues(event))

    def _with_states(self, event: Event) -> Record | None:
        return self._with_tids(event, tasks=self._states(event.post))
