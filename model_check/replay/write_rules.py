"""The rules of the write side: queues, the committer, pages, the budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from .rules import Rules, ints, pairs
from .tables import TORN, KeyLanding, Landing, Task

Args = dict[str, Any]

_NO_ROWS = np.empty(0, dtype=np.int64)
NOTHING_LANDS = KeyLanding(_NO_ROWS, _NO_ROWS, _NO_ROWS)


class WriteRules(Rules):
    """Actions under the task lock and the page lock."""

    def _tasks(self, tids: list[int]) -> list[Task]:
        self.guard("tasks are registered", all(tid in self.s.tasks for tid in tids), f"{tids}")
        return [self.s.tasks[tid] for tid in tids]

    def _move(self, tids: list[int], source: str, to: str) -> list[Task]:
        tasks = self._tasks(tids)
        self.guard("the set of tasks is not empty", bool(tasks))
        for task in tasks:
            self.guard(f"task is {source}", task.state == source, f"task {task.tid} is {task.state}")
            task.state = to
        return tasks

    def _queues(self, post: Args) -> None:
        self.same("queues", {"hi": self.s.hi, "lo": self.s.lo}, {"hi": list(post["hi"]), "lo": list(post["lo"])})

    def _records(self, post: Args) -> None:
        spec = {"completed": self.s.completed, "failed": self.s.failed}
        self.same("records", spec, {"completed": list(post["completed"]), "failed": list(post["failed"])})

    def _states(self, tids: list[int], post: Args) -> None:
        spec = {int(tid): self.s.tasks[tid].state for tid in tids}
        self.same("tasks", spec, {int(tid): state for tid, state in post["tasks"].items()})

    def dispatch(self, args: Args, post: Args) -> None:
        tasks = self._tasks(args["tids"])
        self.guard("dispatched tasks are QUEUED", all(task.state == "QUEUED" for task in tasks))
        self.s.lo += args["tids"]
        self._queues(post)

    def escalate(self, args: Args, post: Args) -> None:
        for task in self._tasks(args["tids"]):
            self.guard("task is not claimed", task.state in ("PENDING", "QUEUED"), f"task {task.tid} is {task.state}")
            self.guard("task is not queued high", task.tid not in self.s.hi, f"task {task.tid}")
            if task.tid in self.s.lo:
                self.s.lo.remove(task.tid)
            task.state = "QUEUED"
            self.s.hi.append(task.tid)
        self._queues(post)

    def claim_copy(self, args: Args, post: Args) -> None:
        tids = args["tids"]
        for tid in tids:
            queue = self.s.hi if tid in self.s.hi else self.s.lo
            self.guard("task is queued once", queue.count(tid) == 1, f"task {tid}")
            queue.remove(tid)
        self._move(tids, "QUEUED", "COPYING")
        self._queues(post)

    def host_ready(self, args: Args, post: Args) -> None:
        for task in self._move(args["tids"], "COPYING", "HOST_READY"):
            if task.page is not None:
                landed = self.s.landed.get(task.page, False)
                self.guard("the step's copy has landed", landed, f"page {task.page}", "SourceFrozen")
                held = ("task", task.tid) in self.s.holders[task.page]
                self.guard("the task holds its page", held, f"page {task.page}", "PageExclusive")
        self._release_tickets(set(args["tids"]))
        self._states(args["tids"], post)
        self.same("staged_bytes", self.s.staged_bytes, post["staged_bytes"])

    def _release_tickets(self, tids: set[int]) -> None:
        for ticket in self.s.tickets:
            if ticket.holders & tids:
                ticket.holders -= tids
                if not ticket.holders:
                    self.s.staged_bytes -= ticket.nbytes
        self.s.tickets = [ticket for ticket in self.s.tickets if ticket.holders]

    def begin_pool_write(self, args: Args, post: Args) -> None:
        tasks = self._tasks(args["tids"])
        for task in tasks:
            self.guard("task is HOST_READY", task.state == "HOST_READY", f"task {task.tid} is {task.state}")
            self.guard("the rows are decided once", task.landing is None, f"task {task.tid}", "SingleWriter")
        landing = self._landing(tasks)
        for task in tasks:
            task.landing = landing
        logged = {rows["key"]: (ints(rows["slots"]), ints(rows["tids"])) for rows in post["rows"]}
        for key in dict.fromkeys([*logged, *landing]):
            spec = landing.get(key, NOTHING_LANDS)
            slots, tids = logged.get(key, (spec.slots[:0], spec.tids[:0]))
            order = np.argsort(slots, kind="stable")
            self.same_rows("rows", spec.slots, slots[order], spec.slots)
            self.same_rows("rows", spec.tids, tids[order], spec.slots)
            self._same_tags(key, spec, order, post)
            self.s.keys[key].pool[spec.slots] = TORN

    def _same_tags(self, key: str, spec: KeyLanding, order: np.ndarray, post: Args) -> None:
        """The rows that are written carry the identities that were frozen."""
        table = self.s.keys[key]
        logged: Args = next((rows["tags"] for rows in post["rows"] if rows["key"] == key), {})
        if table.tags is not None and key in logged:
            now = table.version[spec.slots] == spec.versions
            self.same_rows("tags", table.tags[spec.slots[now]], ints(logged[key])[order][now], spec.slots[now])

    def _landing(self, tasks: list[Task]) -> Landing:
        """Per key the rows to write, by slot: the last version of each slot, none that was taken over."""
        by_key: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        for task in tasks:
            for key, parts in self._rows_by_key(task).items():
                slots, versions = self._still_owned(task, key, parts)
                by_key.setdefault(key, []).append((slots, np.full(slots.size, task.tid), versions))
        return {key: self._in_order(key, parts) for key, parts in by_key.items()}

    def _rows_by_key(self, task: Task) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
        by_key: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for key, slots, versions in () if task.abandoned else task.rows:
            by_key.setdefault(key, []).append((slots, versions))
        return by_key

    def _still_owned(
        self, task: Task, key: str, parts: list[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        slots, versions = parts[0]
        if len(parts) > 1:
            slots, versions = (np.concatenate(column) for column in zip(*parts, strict=True))
            _, last = np.unique(slots[::-1], return_index=True)
            slots, versions = slots[slots.size - 1 - last], versions[slots.size - 1 - last]
        if key in task.lost:
            mine = ~self.s.among(slots, task.lost_slots(key))
            slots, versions = slots[mine], versions[mine]
        return slots, versions

    def _in_order(self, key: str, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> KeyLanding:
        slots, tids, versions = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(slots, kind="stable")
        self.guard("one task writes a row", self.s.distinct(slots), key, "SingleWriter")
        return KeyLanding(slots[order], tids[order], versions[order])

    def complete(self, args: Args, post: Args) -> None:
        tasks = self._move(args["tids"], "HOST_READY", "WRITTEN")
        for task in tasks:
            self.guard("its pool write was begun", task.landing is not None, f"task {task.tid}")
            if task.page is not None:
                left = ("task", task.tid) not in self.s.holders[task.page]
                self.guard("it has left its page", left, f"page {task.page}", "ReleasedOnce")
            task.recorded = True
        for landing in {id(task.landing): task.landing for task in tasks}.values():
            for key, rows in (landing or {}).items():
                self.s.keys[key].pool[rows.slots] = rows.versions
        self.s.completed += args["tids"]
        self._records(post)

    def fail(self, args: Args, post: Args) -> None:
        for task in self._tasks(args["tids"]):
            self.guard("task is not final", task.state not in ("WRITTEN", "FAILED"), f"task {task.tid} is {task.state}")
            task.state = "FAILED"
        self._release_tickets(set(args["tids"]))
        self._states(args["tids"], post)
        self.same("staged_bytes", self.s.staged_bytes, post["staged_bytes"])

    def record_failure(self, args: Args, post: Args) -> None:
        for task in self._tasks(args["tids"]):
            self.guard("task is FAILED", task.state == "FAILED", f"task {task.tid} is {task.state}", "FailLoud")
            self.guard("its failure is recorded once", not task.recorded, f"task {task.tid}", "ReleasedOnce")
            if task.page is not None:
                left = ("task", task.tid) not in self.s.holders[task.page]
                self.guard("it has left its page", left, f"page {task.page}", "ReleasedOnce")
            task.recorded = True
        self.s.failed += args["tids"]
        self._records(post)

    def wake(self, args: Args, post: Args) -> None:
        logged = {int(tid): state for tid, state in post["tasks"].items()}
        self.same("tasks", sorted(args["tids"]), sorted(logged))
        for tid in args["tids"]:
            task = self.s.tasks.get(tid)
            if task is None:  # drained before its waiters were woken, so it was recorded
                self.guard("the task is woken once", tid in self.s.unwoken, f"task {tid}", "RecordBeforeWake")
                self.s.unwoken.discard(tid)
                continue
            self.guard("its record is published", task.recorded, f"task {tid}", "RecordBeforeWake")
            self.guard("the task is woken once", not task.finished, f"task {tid}", "RecordBeforeWake")
            task.finished = True
            self.same("tasks", task.state, logged[tid])

    def join_begin(self, args: Args, post: Args) -> None:
        self._states(args["tids"], post)
        self.s.joining.append(list(args["tids"]))

    def join_end(self, args: Args, post: Args) -> None:
        tids = list(args["tids"])
        self.guard("the wait was begun", tids in self.s.joining, f"{tids}", "NoWaitUnderLock")
        self.s.joining.remove(tids)
        self.same("tasks", sorted(tids), sorted(int(tid) for tid in post["tasks"]))
        for tid in tids:
            task = self.s.tasks.get(tid)
            if task is not None:
                self.guard("the tasks are finished", task.finished, f"task {tid} is {task.state}", "RecordBeforeWake")

    def reserve(self, args: Args, post: Args) -> None:
        fits = self.s.staged_bytes + args["nbytes"] <= self.s.budget
        self.same("fits", fits, bool(args["fits"]))
        if fits:
            self.s.staged_bytes += args["nbytes"]
        self.same("staged_bytes", self.s.staged_bytes, post["staged_bytes"])

    def unreserve(self, args: Args, post: Args) -> None:
        held = sum(ticket.nbytes for ticket in self.s.tickets)
        self.guard("no ticket holds it", self.s.staged_bytes - args["nbytes"] >= held, "", "BudgetExact")
        self.s.staged_bytes -= args["nbytes"]
        self.same("staged_bytes", self.s.staged_bytes, post["staged_bytes"])

    # ---------------------------------------------------------------- pages

    def _holders(self, page: int, post: Args) -> None:
        self.same("holders", sorted(self.s.holders[page]), pairs(post["holders"]))

    def claim_page_begin(self, args: Args, post: Args) -> None:
        holder = pairs([args["holder"]])[0]
        self.guard(
            "a step claims a page once", holder[0] == "step" and holder not in self.s.waiting, "", "PageExclusive"
        )
        self.s.waiting.add(holder)

    def claim_page_end(self, args: Args, post: Args) -> None:
        page, holder = args["page"], pairs([args["holder"]])[0]
        self.guard("the wait was begun", holder in self.s.waiting, f"{holder}", "NoWaitUnderLock")
        self.s.waiting.discard(holder)
        free = not self.s.holders[page]
        self.guard("the page is free", free, f"{sorted(self.s.holders[page])}", "PageExclusive")
        self.s.holders[page].add(holder)
        self._holders(page, post)

    def release_page(self, args: Args, post: Args) -> None:
        page = args["page"]
        for holder in pairs(args["left"]):
            self.guard("it holds the page", holder in self.s.holders[page], f"{holder} on {page}", "ReleasedOnce")
            self._may_leave(holder)
            self.s.holders[page].discard(holder)
        if not self.s.holders[page]:
            self.s.landed.pop(page, None)
        self._holders(page, post)

    def _may_leave(self, holder: tuple[str, int]) -> None:
        kind, number = holder
        if kind == "task":
            task = self.s.tasks[number]
            done = task.state == "FAILED" or (task.state == "HOST_READY" and task.landing is not None)
            self.guard("its rows are in the pool", done, f"task {number} is {task.state}", "PageExclusive")
        else:
            self.guard("its step is consumed", number not in self.s.steps, f"step {number}", "PageExclusive")

    def freeze(self, args: Args, post: Args) -> None:
        page, step = args["page"], args["step"]
        alone = self.s.holders[page] == {("step", step)}
        self.guard("the step alone holds the page", alone, f"{sorted(self.s.holders[page])}", "PageExclusive")
        self.guard("a page is frozen once", page not in self.s.landed, f"page {page}", "SourceFrozen")
        self.s.landed[page] = False
        self.s.frozen_step[page] = step
        self.s.frozen_tags[page] = post["tags"]

    def copy_lands(self, args: Args, post: Args) -> None:
        page = args["page"]
        under_way = self.s.landed.get(page) is False and self.s.frozen_step[page] == args["step"]
        self.guard("a copy of the step is under way", under_way, f"page {page}", "SourceFrozen")
        self.s.landed[page] = True
        frozen = self.s.frozen_tags[page]
        for key, tags in post["tags"].items():
            self.same("tags", np.asarray(frozen[key]).tolist(), np.asarray(tags).tolist())

    def overwrite_live(self, args: Args, post: Args) -> None:
        """The live buffers are the environment's: nothing of the cache may change with them."""

    def end(self) -> None:
        """What must hold after the last event of a cache that was shut down."""
        if self.s.ended:
            held = [sorted(holders) for holders in self.s.holders if holders]
            self.guard("no page is held at the end", not held, f"{held}", "ReleasedOnce")
            self.guard(
                "no byte is charged at the end", self.s.staged_bytes == 0, f"{self.s.staged_bytes}", "BudgetExact"
            )
            self.guard("everybody was woken", not self.s.unwoken, f"{sorted(self.s.unwoken)}", "RecordBeforeWake")
