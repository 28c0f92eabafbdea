"""The strips of the in-process checker's state: what each event it takes changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from palimpsest.trace import Event

from ..replay.machine import Machine
from ..replay.tables import Read, Task
from .strips import Key, Strips

_STATES = ("ABSENT", "IN_TRANSIT", "COMMITTED")
#: the actions that change what is known of slots
_CLAIMS = frozenset({"publish", "begin_step", "drain", "reset", "shutdown_end"})


class MachineStrips:
    """Replays events, and puts what they change on strips. Slots that nobody ever claimed have none."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.machine = Machine(config)
        self.strips = Strips()
        self._slots: dict[str, np.ndarray] = {}
        self._requests: dict[int, str] = {}
        self._there: set[Key] = set()
        for page in range(int(config["pages"])):
            self.strips.put(("page", page), 0, "FREE", f"page {page} free")

    def take(self, event: Event, at: int) -> None:
        """Take an event as moment `at`. Raises `RejectedError` when it is not allowed; then it changes nothing."""
        named = [*named_in(event), *self._rows_of(event)]
        self.strips.touch(filter(self.strips.known, named), at)
        self.machine.take(event)
        state = self.machine.s
        self._requests.update((generation, request) for request, generation in state.live.items())
        self._pages(at)
        self._come_and_go(at)
        if event.action in _CLAIMS:
            self._claims(at)
        self.strips.put(("variable", "staged bytes"), at, "VALUE", f"{state.staged_bytes:,}")
        self.strips.touch(filter(self.strips.known, named), at)

    def _rows_of(self, event: Event) -> list[Key]:
        """The rows of the read that is fetched."""
        read = self.machine.s.reads.get(event.args.get("read", 0))
        return [] if read is None else [("slot", (slot, read.key)) for slot in read.slots.tolist()]

    def _pages(self, at: int) -> None:
        for page, holders in enumerate(self.machine.s.holders):
            held = ", ".join(f"{kind} {number}" for kind, number in sorted(holders))
            self.strips.put(("page", page), at, "HELD" if held else "FREE", f"page {page} {held or 'free'}")

    def _come_and_go(self, at: int) -> None:
        state = self.machine.s
        there: set[Key] = set()
        for tid, task in state.tasks.items():
            there.add(("task", tid))
            self.strips.put(("task", tid), at, task.state, _task_label(task))
        for rid, read in state.reads.items():
            there.add(("read", rid))
            self.strips.put(("read", rid), at, *_read_state(rid, read))
        for key in self._there - there:
            self.strips.end(key, at)
        self._there = there

    def _claims(self, at: int) -> None:
        state = self.machine.s
        for key, table in state.keys.items():
            now = np.stack([state.tenant, table.version, table.status])
            before = self._slots.get(key)
            changed = (now != (0 if before is None else before)).any(axis=0)
            for slot in np.flatnonzero(changed).tolist():
                tenant, version, status = now[:, slot].tolist()
                self.strips.put(("slot", (slot, key)), at, _STATES[status], self._slot_label(tenant, version, status))
            self._slots[key] = now

    def _slot_label(self, tenant: int, version: int, status: int) -> str:
        whose = f"{self._requests.get(tenant, '?')}.{tenant}" if tenant else "nobody"
        return f"{whose} v{version} {_STATES[status]}"


def _task_label(task: Task) -> str:
    return f"task {task.tid} {task.request} {task.state}{' late' if task.deferred else ''}"


def _read_state(rid: int, read: Read) -> tuple[str, str]:
    state = "FETCHING" if read.fetching else "PLANNED" if read.preserved is None else "PRESERVED"
    return state, f"read {rid} {read.key} {state}"


def named_in(event: Event) -> list[Key]:
    """What an event names in its arguments: tasks, pages, reads."""
    args = event.args
    keys: list[Key] = [("task", tid) for tid in args.get("tids", ())]
    keys += [("read", rid) for rid in args.get("reads", ())] if event.action == "drop_read" else []
    keys += [("read", args["read"])] if "read" in args else []
    keys += [("page", args["page"])] if "page" in args else []
    keys += [("task", number) for kind, number in args.get("left", ()) if kind == "task"]
    return keys
