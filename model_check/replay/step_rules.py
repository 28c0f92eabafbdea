"""The rules of steps on their way through the cache, of epochs, and of the end."""

from __future__ import annotations

import numpy as np

from .claim_rules import ClaimRules
from .rules import Args
from .tables import ABSENT, COMMITTED, Begun, IntArray, KeyLanding, KeyTable, Task

#: what becomes of a slot's status when the row is committed: a retired one stays absent
AFTER_COMMIT = np.array([ABSENT, COMMITTED, COMMITTED], dtype=np.int8)


class StepRules(ClaimRules):
    """Actions under the state lock that are not about one read."""

    # ---------------------------------------------------------------- drain

    def drain(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        if not s.completed and not s.failed:
            if not s.closed or s.end_drained:
                self.reject("there are records, or it is the end", "RecordBeforeWake")
            s.end_drained = True
        if s.completed != post["written"] or s.failed != post["failed"]:
            self.differ("drained", (s.completed, s.failed), (post["written"], post["failed"]))
        written = [s.tasks.pop(tid) for tid in s.completed]
        lost = [s.tasks.pop(tid) for tid in s.failed]
        s.drained.update([(task.tid, task.state) for task in written + lost])
        s.unwoken.update([task.tid for task in written + lost if not task.finished])
        landed = self._commit(written)
        s.failure |= bool(lost)
        s.completed, s.failed = [], []
        self._same_status(landed, post["status"])

    def _commit(self, written: list[Task]) -> list[tuple[str, IntArray]]:
        """Make what was written readable where its task still owns the slot; gives all slots written."""
        landed: list[tuple[str, IntArray]] = []
        for landing in {id(task.landing): task.landing for task in written}.values():
            for table, rows in self.s.landing_by_table(landing or {}).items():
                self._commit_rows(table, rows)
            landed += [(key, rows.slots) for key, rows in (landing or {}).items()]
        return landed

    def _commit_rows(self, table: KeyTable, rows: KeyLanding) -> None:
        slots = rows.slots
        mine = table.writer[slots] == rows.tids
        if np.count_nonzero(mine) < slots.size:
            slots = slots[mine]
        table.writer[slots] = 0
        table.status[slots] = AFTER_COMMIT.take(table.status[slots])

    def _same_status(self, landed: list[tuple[str, IntArray]], logged: list[Args]) -> None:
        self.same("drained", [key for key, _ in landed], [entry["key"] for entry in logged])
        for (key, slots), entry in zip(landed, logged, strict=True):
            self.same_rows("drained", slots, entry["slots"], slots)
            self.same_rows("slots.status", self.s.keys[key].status[slots], entry["status"], slots)

    # ---------------------------------------------------------------- the engine

    def begin_step(self, args: Args, post: Args, thread: str) -> None:
        self.open()
        s, begun = self.s, self.s.begun
        self.drop([rid for rid in begun.reads.values() if rid in s.reads] if begun else [], post["dropped"])
        s.begun = None
        self.loud()
        self.handed_over()
        if s.reserved is not None:
            self.reject("no bytes are reserved between steps", "ReleasedOnce", f"{s.reserved}")
        self.same("sealed", self._end(args["ended"]), post["sealed"])
        allocated = np.array(self._blocks(args["allocated"]), dtype=np.int64)
        retired = s.slots_of(allocated)
        s.give_back(allocated)
        self.retire(retired)
        self.same_rows("slots.tenant", retired, post["retired"]["slots"], retired)
        self.same_everywhere("slots.tenant", 0, post["retired"]["tenant"], retired)
        self.same("slots.status", sorted(s.keys), sorted(post["retired"]["keys"]))
        for keys, table in s.families.items():
            self.same_slots(keys, table, retired, post["retired"]["keys"])
        s.begun = Begun({hit["request"]: self._hit(hit) for hit in args["hits"]})
        if len(s.begun.hits) < len(args["hits"]):
            self.reject("a request hits once", "ReleasedOnce")
        s.over_budget = False
        self.plan_all(post["reads"], [(request, key) for request in s.begun.hits for key in s.keys], s.begun)

    def _end(self, requests: list[str]) -> list[int]:
        """End generations; gives their open deferred tasks, which take no more rows."""
        s, sealed = self.s, []
        if len(set(requests)) < len(requests):
            self.reject("a request ends once", "ReleasedOnce", f"{requests}")
        for request in requests:
            s.live.pop(request, None)
            if request in s.deferred:
                sealed.append(s.deferred.pop(request))
        s.to_escalate = sealed
        return sealed

    def _blocks(self, blocks: list[int]) -> list[int]:
        known = not blocks or 0 <= min(blocks) <= max(blocks) < self.s.num_blocks
        if not known or len(set(blocks)) < len(blocks):
            self.reject("blocks are distinct and there", "TenantIsolation", f"{blocks}")
        return blocks

    def _hit(self, hit: Args) -> IntArray:
        if hit["request"] in self.s.live or not hit["blocks"]:
            self.reject("a hit is of blocks, by a request that is not live", "ReadIntegrity", hit["request"])
        return self.s.slots_of(np.array(self._blocks(hit["blocks"]), dtype=np.int64))

    def seal_oldest(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        if not s.over_budget:
            self.reject("a charge did not fit", "BudgetExact")
        s.over_budget = False
        oldest = min((s.tasks[tid].first for tid in s.deferred.values()), default=0)
        sealed = [tid for tid in s.deferred.values() if s.tasks[tid].first == oldest]
        self.same("sealed", sealed, post["sealed"])
        s.deferred = {request: tid for request, tid in s.deferred.items() if tid not in sealed}
        s.to_escalate = sealed or [tid for tid, task in s.tasks.items() if task.state not in ("WRITTEN", "FAILED")]
        self.same("flushed", s.to_escalate, post["flushed"])

    # ---------------------------------------------------------------- consume

    def _consume(self, step: int, post: Args) -> list[int]:
        if step not in self.s.steps:
            self.reject("the step is not consumed", "ConsumeOnce", f"step {step}")
        _, reads = self.s.steps.pop(step)
        self.same("steps", list(self.s.steps), post["steps"])
        return reads

    def take_step(self, args: Args, post: Args, thread: str) -> None:
        self.open()
        self.loud()
        self.s.building[thread] = self._consume(args["step"], post)
        self.s.taken.add(args["step"])
        self.s.raising.discard(thread)

    def discard_step(self, args: Args, post: Args, thread: str) -> None:
        self.open()
        reads = self._consume(args["step"], post)
        self.drop([rid for rid in reads if rid in self.s.reads], post["dropped"])

    # ---------------------------------------------------------------- epochs and the end

    def reset(self, args: Args, post: Args, thread: str) -> None:
        self.open()
        s = self.s
        self.loud()
        self.handed_over()
        s.tenant[:] = 0
        for table in s.families.values():
            table.version += 1
            table.status[:] = ABSENT
            table.writer[:] = 0
        for task in s.tasks.values():
            task.abandoned = True
            for record, _, _ in task.parts:
                record.disturbed = True
        for request in s.live:
            s.generations += 1
            s.live[request] = s.generations
        self.same("sealed", list(s.deferred.values()), post["sealed"])
        s.to_escalate, s.deferred = list(s.deferred.values()), {}

    def shutdown_begin(self, args: Args, post: Args, thread: str) -> None:
        self.open()
        self.s.closed = True

    def shutdown_end(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        if not s.closed or s.ended:
            self.reject("it was shut down, and ends once", "ReleasedOnce")
        if s.completed or s.failed:
            self.reject("all records were drained", "RecordBeforeWake")
        self.same("steps", list(s.steps), post["steps"])
        self.drop(list(s.reads), post["dropped"])
        s.steps, s.begun, s.live, s.deferred = {}, None, {}, {}
        s.ended = True

    def end(self) -> None:
        """What must hold after the last event: the cache was shut down, and nothing is held."""
        s = self.s
        if not s.ended:
            self.reject("the trace goes on to the end of the cache", "ReleasedOnce", "it is a part of one")
        if held := [sorted(holders) for page, holders in enumerate(s.holders) if holders and not self._is_stuck(page)]:
            self.reject("no page is held at the end", "ReleasedOnce", f"{held}")
        if s.staged_bytes:
            self.reject("no byte is charged at the end", "BudgetExact", f"{s.staged_bytes}")
        if s.unwoken:
            self.reject("everybody was woken", "RecordBeforeWake", f"{sorted(s.unwoken)}")

    def _is_stuck(self, page: int) -> bool:
        """Whether a copy that never landed keeps the page: its step was given up before it was published."""
        copy = self.s.frozen.get(page)
        return copy is not None and not copy.landed and not copy.published
