"""The state of a real cache in the specification's words: read off its own structures, between two actions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palimpsest.prefix_cache.gather import distinct_tickets, find_rows
from palimpsest.prefix_cache.interface import WriteSchedule
from palimpsest.prefix_cache.reads import PendingRead
from palimpsest.prefix_cache.tasks import WriteTask

from .spec_state import Cell, Identity, View

if TYPE_CHECKING:
    from .runner import Runner

_STATUS = ("ABSENT", "IN_TRANSIT", "COMMITTED")


class CodeState:
    """Reads one cache. Steps and begins are numbered as the specification counts them, by what was seen of them."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._cache, self._sizes = runner, runner.cache, runner.sizes
        #: of each step that asked for a page, its number there
        self.steps: dict[int, int] = {}
        self.begins = self.resets = 0
        #: of each read, the begin whose hit it is of
        self._begin_of: dict[int, int] = {}

    def note(self, action: str, args: dict[str, Any]) -> None:
        """Count what is numbered."""
        if action == "begin_step":
            self.begins += 1
        elif action == "reset":
            self.resets += 1
        elif action == "claim_page_begin":
            self.steps.setdefault(args["holder"][1], len(self.steps) + 1)
        elif action == "publish":
            self._runner.published(args["step"], self.begins)

    def view(self) -> View:
        """All that the specification's states have of it."""
        return {**self._of_slots(), **self._of_requests(), **self._of_tasks(), **self._of_memory()}

    # ---------------------------------------------------------------- guarded by the state lock

    def _of_slots(self) -> View:
        table, sizes = self._cache._slot_status, self._sizes
        of_keys = {key: table.get_slot_status(sizes.code_key(key)) for key in self._known()}
        cells = sizes.cells
        return {
            "tenant": {slot: int(table.tenant[slot]) for slot in sizes.slots},
            "version": {(s, k): int(of_keys[k].version[s]) if k in of_keys else 0 for s, k in cells},
            "status": {(s, k): _STATUS[int(of_keys[k].status[s])] if k in of_keys else "ABSENT" for s, k in cells},
            "writer": {(s, k): int(of_keys[k].writer[s]) if k in of_keys else 0 for s, k in cells},
            "known": self._known(),
        }

    def _known(self) -> set[str]:
        return {self._sizes.spec_key(key) for key in self._cache._slot_status.keys}

    def _of_requests(self) -> View:
        cache, requests = self._cache, self._cache._request_tasks
        open_tasks = {request: task.tid for request, task in requests.deferred.items()}
        return {
            "liveGen": {request: requests.live.get(request, 0) for request in self._sizes.requests},
            "openTask": {request: open_tasks.get(request, 0) for request in self._sizes.requests},
            "gens": requests.generations,
            "tids": requests._next_tid - 1,
            "last": set(cache._join_next_step_tids),
            "begun": self.begins if cache._begun is not None else 0,
            "steps": {self.steps[step]: ctx.d2h.staging_slot + 1 for step, ctx in cache._step_ctxs.items()},
            "reads": {self._hit(read): self._read(read) for read in cache._hits.pending},
            "failed": cache._failure is not None,
            "closed": cache._closed,
            "epoch": self.resets,
        }

    def _hit(self, read: PendingRead) -> tuple[int, str, str]:
        begin = self._begin_of.setdefault(read.rid, self.begins)
        return begin, read.req_id, self._sizes.spec_key(read.key)

    def hit_of(self, rid: int, request: str, key: str) -> tuple[int, str, str]:
        """The hit of a read that is or was pending."""
        return self._begin_of[rid], request, self._sizes.spec_key(key)

    def _read(self, read: PendingRead) -> View:
        count = read.slots.size
        pool = np.ones(count, dtype=bool) if read.from_pool is None else read.from_pool
        absent = np.zeros(count, dtype=bool) if read.absent is None else read.absent
        kept, rows = read.preserved_mask(), read.preserved_rows
        staged: dict[int, Identity] = {}
        for task, places in read.staged_list:
            found = find_rows(task, torch.from_numpy(read.slots[places]), read.key)
            staged.update(zip(places.tolist(), self._sizes.identities(found), strict=True))
        return {
            "fetching": read.fetching,
            "slots": tuple(read.slots.tolist()),
            "ver": tuple(read.versions.tolist()),
            "src": tuple("absent" if absent[i] else "pool" if pool[i] else "staged" for i in range(count)),
            "joins": set(read.join_tids),
            "kept": {} if rows is None else {i: self._sizes.identity(rows[i]) for i in np.flatnonzero(kept).tolist()},
            "staged": staged,
        }

    # ---------------------------------------------------------------- guarded by the task lock

    def _of_tasks(self) -> View:
        board = self._cache._controller
        tasks = dict(board._tasks)
        tickets = [ticket for ticket in distinct_tickets(tasks.values()) if ticket.holders]
        row_bytes = self._sizes.row_bytes
        return {
            "tasks": {tid: self._task(task) for tid, task in tasks.items()},
            "bytes": {tid: self._bytes(task) for tid, task in tasks.items() if _is_late(task)},
            "hi": set(board._queue_hi),
            "lo": set(board._queue_lo),
            "completed": set(board._completed),
            "failures": set(board._failed),
            "woken": {tid for tid, task in tasks.items() if task.group.woken[task.place]},
            "charged": board._staged_bytes // row_bytes,
            "tickets": sorted((ticket.nbytes // row_bytes, sorted(ticket.holders)) for ticket in tickets),
        }

    def _task(self, task: WriteTask) -> View:
        spec_key, late = self._sizes.spec_key, _is_late(task)
        rows = {
            (slot, spec_key(key))
            for record, start, stop in task.parts
            for slot in record.at[start:stop].tolist()
            for key in record.at_hand
        }
        lost = {(slot, spec_key(key)) for key, slots in task.reassigned.items() for slot in slots.tolist()}
        return {
            "state": task.state.name,
            "late": late,
            "req": task.req_id,
            "page": 0 if late or task.staging_slot is None else task.staging_slot + 1,
            "rows": rows,
            "lost": rows if task.group.abandoned else lost,
        }

    def _bytes(self, task: WriteTask) -> dict[Cell, Identity]:
        return {
            cell: row
            for record, start, stop in task.parts
            for key, values in record.at_hand.items()
            for cell, row in self._rows(key, record.at[start:stop].tolist(), values[start:stop])
        }

    def _rows(self, key: str, slots: Iterable[int], values: torch.Tensor) -> list[tuple[Cell, Identity]]:
        named = self._sizes.spec_key(key)
        return [((slot, named), row) for slot, row in zip(slots, self._sizes.identities(values), strict=True)]

    # ---------------------------------------------------------------- pages and the pool

    def _of_memory(self) -> View:
        staging, device = self._cache._controller.staging, self._runner.device
        pages = range(1, self._sizes.pages + 1)
        return {
            "holders": {page: {self._holder(*each) for each in staging._busy[page - 1].told()} for page in pages},
            "page": {page: dict(self._on_page(page)) for page in pages},
            "onWay": {
                page: [
                    dict(pair for key, rows in each.rows.items() for pair in self._rows(key, each.slots, rows))
                    for each in device.on_way(page)
                ]
                for page in pages
            },
            "pool": {
                cell: row
                for key, storage in self._cache._pool._storage.items()
                for cell, row in self._rows(key, self._sizes.slots, storage[list(self._sizes.slots)])
                if any(row[:2])
            },
        }

    def _holder(self, kind: str, number: int) -> tuple[str, int]:
        return kind, self.steps[number] if kind == "step" else number

    def _on_page(self, page: int) -> list[tuple[Cell, Identity]]:
        slots, keys = self._runner.device.layout(page)
        buffers = self._cache._controller.staging._buffers[page - 1]
        return [pair for key in keys for pair in self._rows(key, slots, buffers[key][: len(slots)])]


def _is_late(task: WriteTask) -> bool:
    return task.schedule is WriteSchedule.JOIN_ON_FINISH
