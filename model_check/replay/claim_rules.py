"""The rules of claims: a published step takes its slots, its tasks are registered, earlier tenants lose theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .read_rules import ReadRules
from .rules import Args
from .tables import ABSENT, IN_TRANSIT, NO_ROWS, IntArray, KeyTable, Record, Task, Ticket

Lost = dict[tuple[int, str], list[int]]


class ClaimRules(ReadRules):
    """Publish, and the slots of blocks that change hands."""

    def publish(self, args: Args, post: Args, thread: str) -> None:
        self.open()
        self.loud()
        s, slots = self.s, args["slots"]
        self._may_publish(args, slots)
        overtaken = self._overtaken(slots)
        self.preserve(slots, overtaken, post["preserved"])
        self.drop([rid for rid in overtaken if rid in s.reads], post["dropped"])
        s.publishes += 1
        for key in (*args["immediate"], *args["deferred"]):
            if key not in s.keys:
                s.keys[key] = KeyTable(s.num_slots)
        self._claim(args, post, slots)
        begun = s.begun
        assert begun is not None
        missing = [(r, key) for r in begun.hits for key in s.keys if (r, key) not in begun.reads]
        self.plan_all(post["reads"], missing, begun)
        s.steps[args["step"]] = (args["page"], list(begun.reads.values()))
        s.frozen[args["page"]].published = True
        s.begun = None
        self.same("holders", sorted(s.holders[args["page"]]), post["holders"])

    def _may_publish(self, args: Args, slots: IntArray) -> None:
        s, page, step = self.s, args["page"], args["step"]
        self.handed_over()
        if s.begun is None:
            self.reject("a step was begun", "ConsumeOnce")
        if not 0 <= page < len(s.holders) or s.holders[page] != {("step", step)}:
            self.reject("the step alone holds its page", "PageExclusive", f"step {step}, page {page}")
        if page not in s.frozen or s.frozen[page].step != step or s.frozen[page].keys != args["immediate"]:
            self.reject("the step's rows are frozen on its page", "SourceFrozen", f"{s.frozen.get(page)}")
        late = [tid for tid in s.last_step if tid in s.tasks and not s.tasks[tid].finished]
        if late:
            self.reject("the last step's writes are done", "PreservedBeforeOverwrite", f"{late}")
        if s.last_of_each(slots) is not None:
            self.reject("the slots are distinct", "SingleWriter", slots=slots)
        self._well_shaped(args, slots)

    def _well_shaped(self, args: Args, slots: IntArray) -> None:
        requests, counts = args["requests"], args["counts"]
        keys = [*args["immediate"], *args["deferred"]]
        if len(set(requests)) < len(requests) or len(set(keys)) < len(keys):
            self.reject("requests and keys are distinct", "SingleWriter", f"{requests}, {keys}")
        if len(counts) != len(requests) or sum(counts) != slots.size or min(counts, default=1) < 1:
            self.reject("each row is a request's", "TenantIsolation", f"{counts} of {slots.size} rows")
        reserved, due = self.s.reserved, args["nbytes"] if args["deferred"] else None
        if not reserved == self.s.claimed_bytes == due or (due is None and args["nbytes"]):
            self.reject("its deferred rows were charged before it claimed a page", "BudgetExact", f"{reserved} bytes")

    def _overtaken(self, slots: IntArray) -> list[int]:
        """Reads of this step's hits that touch its own slots."""
        begun = self.s.begun
        assert begun is not None
        hit = [request for request, at in begun.hits.items() if self.s.among(at, slots).any()]
        return [begun.reads.pop(key) for key in [key for key in begun.reads if key[0] in hit]] if hit else []

    # ---------------------------------------------------------------- the claim

    def _claim(self, args: Args, post: Args, slots: IntArray) -> None:
        s, counts, requests = self.s, args["counts"], args["requests"]
        tenants = np.repeat(np.array([self._generation(r) for r in requests], dtype=np.int64), counts)
        immediate, late = self._immediate(args, post, slots), self._late(args, post, slots)
        writers = dict.fromkeys(args["immediate"], immediate.tids)
        writers |= dict.fromkeys(args["deferred"], late.tids)
        mates = self._block_mates(slots, tenants)
        self.same_rows("slots.tenant", mates, post["retired"], mates)
        self.retire(mates)
        self.same_rows("slots.tenant", slots, post["slots"]["slots"], slots)
        self.same_rows("slots.tenant", tenants, post["slots"]["tenant"], slots)
        lost = self._take_slots(slots, tenants, writers, post["slots"]["keys"])
        logged = {(e["tid"], e["key"]): sorted(e["slots"].tolist()) for e in post["lost"]}
        if lost or post["lost"]:
            self.same("lost", lost, logged)
            self.same("lost", len(lost), len(post["lost"]))
        for record, keys in ((immediate, args["immediate"]), (late, args["deferred"])):
            for key in keys:
                record.versions[key] = s.keys[key].version[slots]
        for key, tags in s.frozen[args["page"]].tags.items():
            if tags.shape[0] != slots.size:
                self.differ("tags", slots.size, tags.shape[0])
            s.keys[key].note_tags(slots, tags)

    def _generation(self, request: str) -> int:
        s = self.s
        if request not in s.live:
            s.generations += 1
            s.live[request] = s.generations
        return s.live[request]

    def _new_task(self, tid: int, request: str, deferred: bool, page: int | None) -> Task:
        s = self.s
        if tid <= s.last_tid:
            self.reject("the task is new", "TaskChain", f"task {tid} after task {s.last_tid}")
        s.last_tid = tid
        task = s.tasks[tid] = Task(tid, request, deferred, "PENDING" if deferred else "QUEUED", page, s.publishes)
        return task

    def _immediate(self, args: Args, post: Args, slots: IntArray) -> Record:
        """The tasks that write the step's immediate rows, one for each request."""
        s, tids, page = self.s, post["tids"], args["page"]
        requests = args["requests"] if args["immediate"] else []
        self.same("tasks", len(requests), len(tids))
        record, start = Record(slots, tids, args["counts"] if tids else [], {}), 0
        for tid, request, count in zip(tids, requests, args["counts"], strict=False):
            self._new_task(tid, request, False, page).parts.append((record, start, start + count))
            s.holders[page].add(("task", tid))
            start += count
        s.last_step, s.to_dispatch = list(tids), list(tids)
        return record

    def _late(self, args: Args, post: Args, slots: IntArray) -> Record:
        """The tasks that take the step's deferred rows: open ones, or new ones."""
        s, takers, opened, closed = self.s, post["takers"], iter(post["opened"]), []
        keys, spec, stop = args["deferred"], [], 0
        for request, count in zip(args["requests"], args["counts"], strict=True) if keys else ():
            start, stop = stop, stop + count
            task = s.tasks.get(s.deferred.get(request, 0))
            if task is None or not self._can_take(task, keys, slots[start:stop]):
                if task is not None and task.state == "PENDING":
                    closed.append(task.tid)
                task = self._new_task(next(opened, 0), request, True, None)
                s.deferred[request] = task.tid
            spec.append((task, start, stop))
        self.same("tasks", [task.tid for task, _, _ in spec], takers)
        self.same("tasks", [], list(opened))
        self.same("sealed", closed, post["closed"])
        s.to_escalate = closed
        record = Record(slots, takers, args["counts"] if takers else [], {})
        if keys:  # the charge of the step's clones becomes its tasks' ticket
            s.reserved = None
        ticket = Ticket(args["nbytes"], set(takers))
        for task, start, stop in spec:
            task.parts.append((record, start, stop))
            task.tickets.append(ticket)
        return record

    def _can_take(self, task: Task, keys: list[str], slots: IntArray) -> bool:
        lost = any(self.s.among(slots, task.lost_slots(key)).any() for key in keys if key in task.lost)
        return task.state == "PENDING" and not lost

    # ---------------------------------------------------------------- slots that change hands

    def _block_mates(self, slots: IntArray, tenants: IntArray) -> IntArray:
        """Other slots of the blocks taken over that still have an earlier tenant."""
        s = self.s
        new = s.tenant[slots] != tenants
        if not np.count_nonzero(new):
            return NO_ROWS
        if not np.count_nonzero(s.tenant.reshape(-1, s.block_size)[slots[new] // s.block_size]):
            return NO_ROWS
        owner = np.zeros(s.num_blocks, dtype=np.int64)
        owner[slots[new] // s.block_size] = tenants[new]
        mates = s.slots_of(np.flatnonzero(owner))
        mates = mates[~s.among(mates, slots)]
        theirs = s.tenant[mates]
        found: IntArray = mates[(theirs != 0) & (theirs != owner[mates // s.block_size])]
        return found

    def retire(self, slots: IntArray) -> None:
        """Blocks changed hands: no row there can be planned on, deferred tasks no longer write them."""
        s = self.s
        if not slots.size:
            return
        s.tenant[slots] = 0
        for key, table in s.keys.items():
            writers = table.writer[slots]
            for tid in set(writers.tolist()) - {0}:
                if s.tasks[tid].deferred:
                    gone = slots[writers == tid]
                    s.tasks[tid].lose(key, gone)
                    table.writer[gone] = 0
            table.status[slots] = ABSENT

    def _take_slots(
        self, slots: IntArray, tenants: IntArray, writers: dict[str, IntArray], logged: dict[str, Args]
    ) -> Lost:
        """Claim the slots key by key, compare each with the log, and give the rows that tasks lose."""
        s = self.s
        changed = s.tenant[slots] != tenants
        s.tenant[slots] = tenants
        self.same("slots.status", sorted(s.keys), sorted(logged))
        lost: Lost = {}
        for key, table in s.keys.items():
            if key in writers:
                self._write_key(lost, key, slots, writers[key])
                self.same_everywhere("slots.status", IN_TRANSIT, logged[key]["status"], slots)
                self.same_rows("slots.writer", writers[key], logged[key]["writer"], slots)
                self.same_rows("slots.version", table.version[slots], logged[key]["version"], slots)
            else:
                self._lose_key(lost, key, slots[changed])
                self.same_slots(slots, {key: logged[key]})
        return lost

    def _write_key(self, lost: Lost, key: str, slots: IntArray, writers: IntArray) -> None:
        table = self.s.keys[key]
        self._note_lost(lost, key, slots, table.writer[slots], writers)
        table.version[slots] += 1
        table.status[slots] = IN_TRANSIT
        table.writer[slots] = writers

    def _lose_key(self, lost: Lost, key: str, slots: IntArray) -> None:
        table = self.s.keys[key]
        self._note_lost(lost, key, slots, table.writer[slots], np.zeros(slots.size, dtype=np.int64))
        table.version[slots] += 1
        table.status[slots] = ABSENT
        table.writer[slots] = 0

    def _note_lost(self, lost: Lost, key: str, slots: IntArray, before: IntArray, after: IntArray) -> None:
        if not np.count_nonzero(before):
            return
        robbed = (before > 0) & (before != after)
        for tid in sorted(set(before[robbed].tolist())):
            gone = slots[robbed & (before == tid)]
            lost[tid, key] = sorted(gone.tolist())
            self.s.tasks[tid].lose(key, gone)

    def same_slots(self, slots: IntArray, keys: dict[str, Any]) -> None:
        """Compare all that is known of `slots`, key by key."""
        for key, logged in keys.items():
            table = self.s.keys[key]
            self.same_rows("slots.version", table.version[slots], logged["version"], slots)
            self.same_rows("slots.status", table.status[slots], logged["status"], slots)
            self.same_rows("slots.writer", table.writer[slots], logged["writer"], slots)
