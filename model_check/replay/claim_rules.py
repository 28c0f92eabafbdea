"""The rules of claims: a published step takes its slots, its tasks are registered, earlier tenants lose theirs."""

from __future__ import annotations

import numpy as np

from .read_rules import ReadRules
from .rules import Args
from .tables import ABSENT, IN_TRANSIT, IntArray, KeyTable, Record, Task, Ticket, distinct

Lost = dict[tuple[int, str], list[int]]
Keys = tuple[str, ...]
COLUMNS = ("version", "status", "writer")


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
        s.tell_apart(args["immediate"], args["deferred"])
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
        touched = self.s.each_among(begun.hits.values(), slots)
        hit = [request for request, rows in zip(begun.hits, touched, strict=True) if np.count_nonzero(rows)]
        return [begun.reads.pop(key) for key in [key for key in begun.reads if key[0] in hit]] if hit else []

    # ---------------------------------------------------------------- the claim

    def _claim(self, args: Args, post: Args, slots: IntArray) -> None:
        s, counts, requests = self.s, args["counts"], args["requests"]
        whose = np.arange(len(requests)).repeat(counts)
        generations = [s.live.get(request) or self._generation(request) for request in requests]
        tenants = np.array(generations, dtype=np.int64)[whose]
        immediate, late = self._immediate(args, post, slots, whose), self._late(args, post, slots, whose)
        records = dict.fromkeys(args["immediate"], immediate) | dict.fromkeys(args["deferred"], late)
        before = s.tenant[slots]
        mates = s.give(slots, tenants)
        self.same_rows("slots.tenant", mates, post["retired"], mates)
        self.retire(mates)
        self.same_rows("slots.tenant", slots, post["slots"]["slots"], slots)
        self.same_rows("slots.tenant", tenants, post["slots"]["tenant"], slots)
        lost = self._take_slots(slots, before != tenants, records, post["slots"]["keys"])
        if lost or post["lost"]:
            self.same("lost", lost, {(e["tid"], e["key"]): sorted(e["slots"].tolist()) for e in post["lost"]})
            self.same("lost", len(lost), len(post["lost"]))
        for key, tags in s.frozen[args["page"]].tags.items():
            if tags.shape[0] != slots.size:
                self.differ("tags", slots.size, tags.shape[0])
            s.note_tags(key, slots, tags)
            records[key].tags[key] = tags

    def _generation(self, request: str) -> int:
        """The generation of a request that was not live."""
        s = self.s
        s.generations += 1
        s.live[request] = s.generations
        return s.generations

    def _new_tid(self, tid: int) -> int:
        s = self.s
        if tid <= s.last_tid:
            self.reject("the task is new", "TaskChain", f"task {tid} after task {s.last_tid}")
        s.last_tid = tid
        return tid

    def _immediate(self, args: Args, post: Args, slots: IntArray, whose: IntArray) -> Record:
        """The tasks that write the step's immediate rows, one for each request."""
        s, tids, page = self.s, post["tids"], args["page"]
        requests = args["requests"] if args["immediate"] else []
        self.same("tasks", len(requests), len(tids))
        record, stop = Record(slots, tids, whose), 0
        for tid, request, count in zip(tids, requests, args["counts"], strict=False):
            start, stop = stop, stop + count
            part = record, start, stop
            s.tasks[self._new_tid(tid)] = Task(tid, request, False, "QUEUED", page, s.publishes, [part])
        s.holders[page].update([("task", tid) for tid in tids])
        s.last_step, s.to_dispatch = list(tids), list(tids)
        return record

    def _late(self, args: Args, post: Args, slots: IntArray, whose: IntArray) -> Record:
        """The tasks that take the step's deferred rows: open ones, or new ones."""
        s, takers, opened, closed = self.s, post["takers"], iter(post["opened"]), []
        keys, spec, stop = args["deferred"], [], 0
        requests = args["requests"] if keys else []
        self.same("tasks", len(requests), len(takers))
        record, ticket = Record(slots, takers, whose), Ticket(args["nbytes"], set(takers))
        for request, count in zip(requests, args["counts"], strict=False):
            start, stop = stop, stop + count
            task = s.tasks.get(s.deferred.get(request, 0))
            if task is None or task.state != "PENDING" or (task.lost and self._overlaps(task, keys, slots[start:stop])):
                if task is not None and task.state == "PENDING":
                    closed.append(task.tid)
                tid = s.deferred[request] = self._new_tid(next(opened, 0))
                task = s.tasks[tid] = Task(tid, request, True, "PENDING", None, s.publishes)
            task.parts.append((record, start, stop))
            task.tickets.append(ticket)
            spec.append(task.tid)
        self.same("tasks", spec, takers)
        self.same("tasks", [], list(opened))
        self.same("sealed", closed, post["closed"])
        s.to_escalate = closed
        if keys:  # the charge of the step's clones becomes its tasks' ticket
            s.reserved = None
        return record

    def _overlaps(self, task: Task, keys: list[str], slots: IntArray) -> bool:
        """Whether the task has lost some of `slots`: it does not take them again."""
        return any(self.s.among(slots, task.lost_slots(key)).any() for key in keys if key in task.lost)

    # ---------------------------------------------------------------- slots that change hands

    def retire(self, slots: IntArray) -> None:
        """Blocks changed hands: no row there can be planned on, deferred tasks no longer write them."""
        s = self.s
        if not slots.size:
            return
        s.tenant[slots] = 0
        for keys, table in s.families.items():
            table.status[slots] = ABSENT
            writers = table.writer[slots]
            if not np.count_nonzero(writers):
                continue
            for tid in distinct(writers):
                if tid and s.tasks[tid].deferred:
                    gone = slots[writers == tid]
                    s.tasks[tid].lose(keys, gone)
                    table.writer[gone] = 0

    def _take_slots(
        self, slots: IntArray, changed: np.ndarray, records: dict[str, Record], logged: dict[str, Args]
    ) -> Lost:
        """Claim the slots, some of which `changed` their tenant, compare all with the log, and give what tasks lose."""
        s = self.s
        if s.keys.keys() != logged.keys():
            self.differ("slots.status", sorted(s.keys), sorted(logged))
        lost: Lost = {}
        for keys, table in s.families.items():
            if (record := records.get(keys[0])) is not None:
                self._write_keys(lost, keys, table, slots, record)
                self._same_written(keys, slots, record, logged)
            else:
                self._lose_keys(lost, keys, table, slots[changed])
                self.same_slots(keys, table, slots, logged)
        return lost

    def _write_keys(self, lost: Lost, keys: Keys, table: KeyTable, slots: IntArray, record: Record) -> None:
        self._note_lost(lost, keys, slots, table.writer[slots], record.tids)
        table.version[slots] = versions = table.version[slots] + 1
        record.versions.update(dict.fromkeys(keys, versions))
        table.status[slots] = IN_TRANSIT
        table.writer[slots] = record.tids

    def _same_written(self, keys: Keys, slots: IntArray, record: Record, logged: dict[str, Args]) -> None:
        theirs = [logged[key] for key in keys]
        for status in {id(each["status"]): each["status"] for each in theirs}.values():
            self.same_everywhere("slots.status", IN_TRANSIT, status, slots)
        self.same_for_each("slots.writer", record.tids, [each["writer"] for each in theirs], slots)
        record.tids = theirs[0]["writer"]  # equal, and the very object where it is logged again
        self.same_for_each("slots.version", record.versions[keys[0]], [each["version"] for each in theirs], slots)

    def _lose_keys(self, lost: Lost, keys: Keys, table: KeyTable, slots: IntArray) -> None:
        self._note_lost(lost, keys, slots, table.writer[slots], np.zeros(slots.size, dtype=np.int64))
        table.version[slots] += 1
        table.status[slots] = ABSENT
        table.writer[slots] = 0

    def _note_lost(self, lost: Lost, keys: Keys, slots: IntArray, before: IntArray, after: IntArray) -> None:
        if not np.count_nonzero(before):
            return
        robbed = (before > 0) & (before != after)
        for tid in distinct(before[robbed]):
            gone = slots[robbed & (before == tid)]
            lost.update(dict.fromkeys([(tid, key) for key in keys], sorted(gone.tolist())))
            self.s.tasks[tid].lose(keys, gone)

    def same_slots(self, keys: Keys, table: KeyTable, slots: IntArray, logged: dict[str, Args]) -> None:
        """Compare all that is known of `slots` for the keys of a table."""
        if not slots.size:  # most steps are given no block
            self.same("slots.version", 0, sum(logged[key][column].size for key in keys for column in COLUMNS))
            return
        theirs = [logged[key] for key in keys]
        self.same_for_each("slots.version", table.version[slots], [each["version"] for each in theirs], slots)
        self.same_for_each("slots.status", table.status[slots], [each["status"] for each in theirs], slots)
        self.same_for_each("slots.writer", table.writer[slots], [each["writer"] for each in theirs], slots)
