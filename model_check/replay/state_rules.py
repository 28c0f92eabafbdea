"""The rules of the state lock: steps, hits and reads, claims, epochs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .rules import Rules, ints
from .tables import ABSENT, COMMITTED, FROM_POOL, IN_TRANSIT, NOTHING, STAGED, Begun, KeyTable, Read, Task, Ticket

Args = dict[str, Any]
IntArray = np.ndarray


class StateRules(Rules):
    """Actions under the state lock."""

    def _open(self) -> None:
        self.guard("the cache is open", not self.s.closed, "", "ReleasedOnce")

    def _loud(self) -> None:
        self.guard("no write has failed", not self.s.failure, "", "FailLoud")

    def drain(self, args: Args, post: Args) -> None:
        s, logged = self.s, post
        self.same("drained", (s.completed, s.failed), (list(logged["written"]), list(logged["failed"])))
        written = [s.tasks.pop(tid) for tid in s.completed]
        s.unwoken |= {task.tid for task in written if not task.finished}
        s.drained |= {task.tid for task in written}
        landed: dict[str, list[int]] = {}
        for landing in {id(task.landing): task.landing for task in written}.values():
            for key, rows in (landing or {}).items():
                table = s.keys[key]
                mine = rows.slots[table.writer[rows.slots] == rows.tids]
                table.writer[mine] = 0
                table.status[mine[table.status[mine] == IN_TRANSIT]] = COMMITTED
                landed.setdefault(key, []).extend(rows.slots.tolist())
        s.failure |= bool(s.failed)
        s.unwoken |= {tid for tid in s.failed if not s.tasks.pop(tid).finished}
        s.completed, s.failed = [], []
        told: dict[str, list[int]] = {}
        for entry in logged["status"]:
            slots = ints(entry["slots"])
            told.setdefault(entry["key"], []).extend(slots.tolist())
            self.same_rows("slots.status", s.keys[entry["key"]].status[slots], entry["status"], slots)
        for key in (*landed, *told):
            self.same("drained", sorted(landed.get(key, [])), sorted(told.get(key, [])))

    # ---------------------------------------------------------------- reads

    def _plan(self, entry: Args) -> Read:
        slots = ints(entry["slots"])
        key = entry["key"]
        self.guard("the key is known", key in self.s.keys, key, "ReadIntegrity")
        table = self.s.keys[key]
        status = table.status[slots]
        sources = np.where(status == COMMITTED, FROM_POOL, np.where(status == ABSENT, NOTHING, FROM_POOL))
        joins = []
        if (status == IN_TRANSIT).any():
            writers = np.where(status == IN_TRANSIT, table.writer[slots], 0)
            for tid in np.unique(writers[writers > 0]).tolist():
                if self.s.tasks[tid].deferred:
                    sources[writers == tid] = STAGED
                else:
                    joins.append(tid)
        self.same_rows("reads", table.version[slots], entry["versions"], slots)
        self.same_rows("reads", sources, entry["sources"], slots)
        self.same("reads", sorted(joins), sorted(entry["joins"]))
        tags = None if table.tags is None else np.where((sources == NOTHING)[:, None], 0, table.tags[slots])
        return Read(
            entry["request"], key, slots, table.version[slots], sources, joins, np.zeros(slots.size, bool), tags
        )

    def _plan_all(self, logged: list[Args], expected: list[tuple[str, str]], begun: Begun) -> None:
        self.same("reads", sorted(expected), sorted((entry["request"], entry["key"]) for entry in logged))
        for entry in logged:
            self.guard("a read is planned once", entry["read"] not in self.s.reads, "", "ReleasedOnce")
            self.same("reads", begun.hits[entry["request"]].tolist(), ints(entry["slots"]).tolist())
            self.s.reads[entry["read"]] = self._plan(entry)
            begun.reads[entry["request"], entry["key"]] = entry["read"]

    def _drop(self, spec: list[int], logged: list[int]) -> None:
        self.same("dropped", sorted(spec), sorted(logged))
        for rid in spec:
            del self.s.reads[rid]

    def begin_fetch(self, args: Args, post: Args) -> None:
        self.guard("the read is pending", args["read"] in self.s.reads, f"{args['read']}", "ReleasedOnce")
        read = self.s.reads[args["read"]]
        self.guard("the read is fetched once", not read.fetching, f"{args['read']}", "ReleasedOnce")
        read.fetching = True

    def end_fetch(self, args: Args, post: Args) -> None:
        self.guard("the read is pending", args["read"] in self.s.reads, f"{args['read']}", "ReleasedOnce")
        read = self.s.reads.pop(args["read"])
        self.guard("the read was begun", read.fetching, f"{args['read']}")
        for tid in read.joins:
            written = tid in self.s.drained or (tid in self.s.tasks and self.s.tasks[tid].state == "WRITTEN")
            self.guard("the tasks that it joins are written", written, f"task {tid}", "ReadIntegrity")
        table = self.s.keys[read.key]
        pool = read.sources == FROM_POOL
        changed = pool & (table.version[read.slots] != read.versions)
        if read.all_preserved():
            changed = read.preserved.copy()
        self.same("preserved", np.flatnonzero(changed).tolist(), list(post["preserved"]), read.slots[changed])
        stale = changed & ~read.preserved
        self.guard("changed rows were preserved", not stale.any(), "", "PreservedBeforeOverwrite", read.slots[stale])
        wrong = pool & ~changed & (table.pool[read.slots] != read.versions)
        self.guard("the pool has the planned rows", not wrong.any(), read.key, "ReadIntegrity", read.slots[wrong])
        if post.get("tags") is not None and read.tags is not None:
            self.same_rows("tags", read.tags, post["tags"], read.slots)
        self.same("dropped", len(self.s.reads), post["pending"])

    def drop_read(self, args: Args, post: Args) -> None:
        for rid in args["reads"]:
            self.guard("the read is pending", rid in self.s.reads, f"{rid}", "ReleasedOnce")
            del self.s.reads[rid]
        self.same("dropped", len(self.s.reads), post["pending"])

    # ---------------------------------------------------------------- begin

    def begin_step(self, args: Args, post: Args) -> None:
        self._open()
        s = self.s
        self._drop([rid for rid in s.begun.reads.values() if rid in s.reads] if s.begun else [], post["dropped"])
        s.begun = None
        self._loud()
        sealed = []
        for request in args["ended"]:
            s.live.pop(request, None)
            if request in s.deferred:
                sealed.append(s.deferred.pop(request))
        self.same("sealed", sealed, list(post["sealed"]))
        retired = self._slots_of(ints(args["allocated"]))
        self._retire(retired)
        self._compare_slots(retired, post["retired"])
        s.begun = Begun({hit["request"]: self._hit(hit) for hit in args["hits"]}, {})
        expected = [(request, key) for request in s.begun.hits for key in s.keys]
        self._plan_all(post["reads"], expected, s.begun)

    def _hit(self, hit: Args) -> IntArray:
        self.guard("a hit is of a request that is not live", hit["request"] not in self.s.live, hit["request"])
        return self._slots_of(ints(hit["blocks"]))

    def _slots_of(self, blocks: IntArray) -> IntArray:
        return (blocks[:, None] * self.s.block_size + np.arange(self.s.block_size)).ravel()

    def _retire(self, slots: IntArray) -> None:
        """Blocks changed hands: no row there can be planned on, deferred tasks no longer write them."""
        s = self.s
        s.tenant[slots] = 0
        for key, table in s.keys.items() if slots.size else ():
            for tid in np.unique(table.writer[slots]).tolist():
                if tid and s.tasks[tid].deferred:
                    gone = slots[table.writer[slots] == tid]
                    s.tasks[tid].lost.setdefault(key, []).append(gone)
                    table.writer[gone] = 0
            table.status[slots] = ABSENT

    def _block_mates(self, slots: IntArray, tenants: IntArray) -> IntArray:
        """Other slots of the blocks taken over that still have an earlier tenant."""
        size, owner = self.s.block_size, {}
        for slot, tenant in zip(slots.tolist(), tenants.tolist(), strict=True):
            if self.s.tenant[slot] != tenant:
                owner[slot // size] = tenant
        if not owner:
            return slots[:0]
        mates = self._slots_of(np.array(sorted(owner), dtype=np.int64))
        mates = mates[~self.s.among(mates, slots)]
        mine = np.array([owner[slot // size] for slot in mates.tolist()], dtype=np.int64)
        found: IntArray = mates[(self.s.tenant[mates] != 0) & (self.s.tenant[mates] != mine)]
        return found

    def seal_oldest(self, args: Args, post: Args) -> None:
        s = self.s
        oldest = min((s.tasks[tid].first for tid in s.deferred.values()), default=0)
        sealed = [tid for tid in s.deferred.values() if s.tasks[tid].first == oldest]
        self.same("sealed", sorted(sealed), sorted(post["sealed"]))
        s.deferred = {request: tid for request, tid in s.deferred.items() if tid not in sealed}

    # ---------------------------------------------------------------- publish

    def publish(self, args: Args, post: Args) -> None:
        self._open()
        s, page, slots = self.s, args["page"], ints(args["slots"])
        self.guard("a step was begun", s.begun is not None)
        self.guard("the step is new", args["step"] not in s.steps, f"{args['step']}", "ConsumeOnce")
        self.guard("the step alone holds its page", s.holders[page] == {("step", args["step"])}, "", "PageExclusive")
        late = [tid for tid in s.last_step if tid in s.tasks and not s.tasks[tid].finished]
        self.guard("the last step's writes are done", not late, f"{late}", "PreservedBeforeOverwrite")
        self.guard("the slots are distinct", self.s.distinct(slots), "", "SingleWriter", slots)
        self._loud()
        overtaken = self._overtaken(slots)
        self._preserve(slots, overtaken, post["preserved"])
        self._drop([rid for rid in overtaken if rid in s.reads], post["dropped"])
        s.publishes += 1
        for key in (*args["immediate"], *args["deferred"]):
            s.keys.setdefault(key, KeyTable(s.num_slots))
        self._claim(args, post, slots)
        assert s.begun is not None
        expected = [(r, key) for r in s.begun.hits for key in s.keys if (r, key) not in s.begun.reads]
        self._plan_all(post["reads"], expected, s.begun)
        s.steps[args["step"]] = (page, list(s.begun.reads.values()))
        s.begun = None
        self.same("holders", sorted(s.holders[page]), sorted((str(k), int(n)) for k, n in post["holders"]))

    def _overtaken(self, slots: IntArray) -> list[int]:
        """Reads of this step's hits that touch its own slots."""
        begun = self.s.begun
        assert begun is not None
        hit = [request for request, at in begun.hits.items() if self.s.among(at, slots).any()]
        gone = [key for key in begun.reads if key[0] in hit]
        return [begun.reads.pop(key) for key in gone]

    def _preserve(self, slots: IntArray, spared: list[int], logged: list[Args]) -> None:
        spec = {}
        for rid, read in self.s.reads.items():
            if rid in spared or not read.slots.size:
                continue
            table = self.s.keys[read.key]
            need = self.s.among(read.slots, slots) & (read.sources == FROM_POOL) & ~read.preserved
            if need.any():
                need &= table.version[read.slots] == read.versions
                rows = np.flatnonzero(need)
                if rows.size:
                    spec[rid] = rows.tolist()
                    intact = table.pool[read.slots[rows]] == read.versions[rows]
                    self.guard("what is preserved is intact", bool(intact.all()), "", "ReadIntegrity", read.slots[rows])
                    read.preserved[rows] = True
        self.same("preserved", spec, {entry["read"]: list(map(int, entry["rows"])) for entry in logged})

    def _claim(self, args: Args, post: Args, slots: IntArray) -> None:
        s, counts = self.s, ints(args["counts"])
        rows = np.split(np.arange(slots.size), np.cumsum(counts)[:-1])
        tenants = np.repeat([self._generation(request) for request in args["requests"]], counts)
        immediate = self._immediate(args, post)
        takers = self._takers(args, post, slots, rows) if args["deferred"] else []
        self.guard("only deferred rows are charged", bool(args["deferred"]) or not args["nbytes"], "", "BudgetExact")
        writers = {key: np.repeat(immediate, counts) for key in args["immediate"]}
        writers |= {key: np.repeat(takers, counts) for key in args["deferred"]}
        mates = self._block_mates(slots, tenants)
        self.same("slots.tenant", mates.tolist(), ints(post["retired"]).tolist(), mates)
        self._retire(mates)
        lost = self._take_slots(slots, tenants, writers)
        self.same("lost", lost, {(e["tid"], e["key"]): sorted(ints(e["slots"]).tolist()) for e in post["lost"]})
        self._compare_slots(slots, post["slots"])
        for key, tags in s.frozen_tags.get(args["page"], {}).items():
            s.keys[key].note_tags(slots, ints(tags))
        self._note_rows(args, slots, rows, immediate, takers)
        s.last_step = list(immediate)

    def _generation(self, request: str) -> int:
        if request not in self.s.live:
            self.s.generations += 1
            self.s.live[request] = self.s.generations
        return self.s.live[request]

    def _immediate(self, args: Args, post: Args) -> list[int]:
        tids = list(post["tids"])
        self.same("tasks", len(args["requests"]) if args["immediate"] else 0, len(tids))
        for tid, request in zip(tids, args["requests"], strict=False):
            self.guard("the task is new", tid not in self.s.tasks, f"task {tid}")
            self.s.tasks[tid] = Task(tid, request, False, "QUEUED", args["page"], first=self.s.publishes)
            self.s.holders[args["page"]].add(("task", tid))
        return tids

    def _takers(self, args: Args, post: Args, slots: IntArray, rows: list[IntArray]) -> list[int]:
        s, takers, closed = self.s, list(post["takers"]), []
        opened = iter(post["opened"])
        spec = []
        for request, at in zip(args["requests"], rows, strict=True):
            task = s.tasks.get(s.deferred.get(request, 0))
            if task is None or not self._can_take(task, args["deferred"], slots[at]):
                if task is not None and task.state == "PENDING":
                    closed.append(task.tid)
                task = self._open_deferred(request, next(opened, 0))
            spec.append(task.tid)
        self.same("tasks", spec, takers)
        self.same("sealed", closed, list(post["closed"]))
        s.tickets.append(Ticket(args["nbytes"], set(takers)))
        charged = sum(ticket.nbytes for ticket in s.tickets)
        self.guard("the clone was charged before", s.staged_bytes >= charged, f"{s.staged_bytes}", "BudgetExact")
        return takers

    def _can_take(self, task: Task, keys: list[str], slots: IntArray) -> bool:
        lost = any(self.s.among(slots, task.lost_slots(key)).any() for key in keys if key in task.lost)
        return task.state == "PENDING" and not lost

    def _open_deferred(self, request: str, tid: int) -> Task:
        self.guard("the task is new", tid > 0 and tid not in self.s.tasks, f"task {tid}")
        task = Task(tid, request, True, "PENDING", None, first=self.s.publishes)
        self.s.tasks[tid] = task
        self.s.deferred[request] = tid
        return task

    def _take_slots(
        self, slots: IntArray, tenants: IntArray, writers: dict[str, IntArray]
    ) -> dict[tuple[int, str], list[int]]:
        s = self.s
        changed = slots[s.tenant[slots] != tenants]
        s.tenant[slots] = tenants
        lost: dict[tuple[int, str], list[int]] = {}
        for key, table in s.keys.items():
            at = slots if key in writers else changed
            if not at.size:
                continue
            before, after = table.writer[at], writers.get(key, np.zeros(at.size, np.int64))
            for tid in np.unique(before[(before > 0) & (before != after)]).tolist():
                gone = at[(before == tid) & (before != after)]
                lost[tid, key] = sorted(gone.tolist())
                s.tasks[tid].lost.setdefault(key, []).append(gone)
            table.version[at] += 1
            table.status[at] = IN_TRANSIT if key in writers else ABSENT
            table.writer[at] = after
        return lost

    def _compare_slots(self, slots: IntArray, logged: Args) -> None:
        self.same_rows("slots.tenant", self.s.tenant[slots], logged["tenant"], slots)
        self.same_rows("slots.tenant", slots, logged["slots"], slots)
        self.same("slots.status", sorted(self.s.keys), sorted(logged["keys"]))
        for key, table in self.s.keys.items():
            for name in ("version", "status", "writer"):
                self.same_rows(f"slots.{name}", getattr(table, name)[slots], logged["keys"][key][name], slots)

    def _note_rows(
        self, args: Args, slots: IntArray, rows: list[IntArray], immediate: list[int], takers: list[int]
    ) -> None:
        for keys, tids in ((args["immediate"], immediate), (args["deferred"], takers)):
            for key in keys:
                versions = self.s.keys[key].version[slots]
                for tid, at in zip(tids, rows, strict=True):
                    self.s.tasks[tid].rows.append((key, slots[at], versions[at]))

    # ---------------------------------------------------------------- consume

    def _consume(self, step: int, post: Args) -> list[int]:
        self.guard("the step is not consumed", step in self.s.steps, f"step {step}", "ConsumeOnce")
        _, reads = self.s.steps.pop(step)
        self.same("steps", sorted(self.s.steps), sorted(post["steps"]))
        return reads

    def take_step(self, args: Args, post: Args) -> None:
        self._open()
        self._loud()
        self._consume(args["step"], post)

    def discard_step(self, args: Args, post: Args) -> None:
        self._open()
        reads = self._consume(args["step"], post)
        self._drop([rid for rid in reads if rid in self.s.reads], post["dropped"])

    # ---------------------------------------------------------------- epochs and the end

    def reset(self, args: Args, post: Args) -> None:
        self._open()
        s = self.s
        self._loud()
        s.tenant[:] = 0
        for table in s.keys.values():
            table.version += 1
            table.status[:] = ABSENT
            table.writer[:] = 0
        for task in s.tasks.values():
            task.abandoned = True
        for request in s.live:
            s.generations += 1
            s.live[request] = s.generations
        self.same("sealed", list(s.deferred.values()), list(post["sealed"]))
        s.deferred = {}

    def shutdown_begin(self, args: Args, post: Args) -> None:
        self._open()
        self.s.closed = True

    def shutdown_end(self, args: Args, post: Args) -> None:
        s = self.s
        self.guard("it was shut down", s.closed)
        self.guard("all records were drained", not s.completed and not s.failed, "", "RecordBeforeWake")
        self.same("steps", sorted(s.steps), sorted(post["steps"]))
        self._drop(list(s.reads), post["dropped"])
        s.steps = {}
        s.ended = True
