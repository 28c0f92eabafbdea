"""The rules of write tasks: queues, waits, and the way of a set of tasks into the pool."""

from __future__ import annotations

from typing import cast

import numpy as np

from .page_rules import PageRules
from .rules import Args
from .tables import NO_ROWS, TORN, IntArray, KeyLanding, Landing, Record, Task, Writing, distinct

NOTHING_LANDS = KeyLanding(NO_ROWS, NO_ROWS, NO_ROWS)

Part = tuple[Record, int, int]


class WriteRules(PageRules):
    """Actions under the task lock."""

    def _tasks(self, tids: list[int]) -> list[Task]:
        tasks = list(map(self.s.tasks.get, tids))
        if not tasks or not all(tasks) or len(set(tids)) < len(tids):
            self.reject("each task of a set is registered", "TaskChain", f"{tids}")
        return cast(list[Task], tasks)

    def _move(self, tasks: list[Task], source: str, to: str) -> None:
        for task in tasks:
            if task.state != source:
                self.reject(f"task is {source}", "TaskChain", f"task {task.tid} is {task.state}")
            task.state = to

    def _step(self, thread: str, source: str, to: str, tids: list[int]) -> list[Task]:
        """A thread goes on with the set of tasks that it has; they may have failed and be registered no more."""
        writing = self.s.writing.get(thread)
        if writing is None or writing.stage != source or writing.tids != tids:
            breaks = "RecordBeforeWake" if to == "woken" else "TaskChain"
            self.reject(f"the thread has these tasks, {source}", breaks, f"{thread!r} has {writing}")
        writing.stage = to
        return writing.tasks

    def _same_queues(self, post: Args) -> None:
        s = self.s
        if s.hi != post["hi"] or s.lo != post["lo"]:
            self.differ("queues", {"hi": s.hi, "lo": s.lo}, {"hi": post["hi"], "lo": post["lo"]})

    def _same_records(self, post: Args) -> None:
        s = self.s
        if s.completed != post["completed"] or s.failed != post["failed"]:
            spec = {"completed": s.completed, "failed": s.failed}
            self.differ("records", spec, {name: post[name] for name in spec})

    def _same_states(self, tids: list[int], post: Args) -> None:
        tasks, drained = self.s.tasks, self.s.drained
        spec = {tid: tasks[tid].state if tid in tasks else drained.get(tid) for tid in tids}
        if spec != post["tasks"]:
            self.differ("tasks", spec, post["tasks"])

    # ---------------------------------------------------------------- queues and waits

    def dispatch(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        # a shutdown in between may have failed them: those are not queued any more
        queued = [tid for tid in s.to_dispatch if not s.closed or (tid in s.tasks and s.tasks[tid].state == "QUEUED")]
        if not s.to_dispatch or args["tids"] != queued:
            self.reject("a published step's tasks are dispatched once", "TaskChain", f"{queued}")
        s.lo += queued
        s.to_dispatch = []
        self._same_queues(post)

    def escalate(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        raised = [
            task
            for tid in s.to_escalate
            if (task := s.tasks.get(tid)) is not None and task.state in ("PENDING", "QUEUED") and tid not in s.hi
        ]
        spec = [task.tid for task in raised]
        if not spec or spec != args["tids"]:
            self.reject("closed tasks are escalated once", "TaskChain", f"to be escalated are {spec}")
        for task in raised:
            task.state = "QUEUED"
        s.lo = [tid for tid in s.lo if tid not in spec]
        s.hi += spec
        s.to_escalate = []
        self._same_queues(post)

    def join_begin(self, args: Args, post: Args, thread: str) -> None:
        self._tasks(args["tids"])
        self._same_states(args["tids"], post)
        self.s.waits[thread] = args["tids"]

    def join_end(self, args: Args, post: Args, thread: str) -> None:
        s, tids = self.s, args["tids"]
        if s.waits.pop(thread, None) != tids:
            self.reject("the thread has begun the wait", "NoWaitUnderLock", f"{tids}")
        for tid in tids:
            if (not s.tasks[tid].finished) if tid in s.tasks else (tid in s.unwoken):
                self.reject("the tasks were woken", "RecordBeforeWake", f"task {tid}")
        self._same_states(tids, post)

    # ---------------------------------------------------------------- on the way to the pool

    def claim_copy(self, args: Args, post: Args, thread: str) -> None:
        s, tids = self.s, args["tids"]
        if thread in s.writing:
            self.reject("the thread has written its last tasks", "TaskChain", f"{s.writing[thread]}")
        popped = list(s.hi) if s.hi else self._first_group()
        self.same("queues", [tid for tid in popped if tid in s.tasks and s.tasks[tid].state == "QUEUED"], tids)
        if s.hi:
            s.hi = []
        else:
            s.lo = s.lo[len(popped) :]
        tasks = self._tasks(tids)
        self._move(tasks, "QUEUED", "COPYING")
        s.writing[thread] = Writing("copying", tids, tasks)
        self._same_queues(post)

    def _first_group(self) -> list[int]:
        """The queued tasks of the step whose tasks are queued first."""
        group: list[int] = []
        record = None
        for tid in self.s.lo:
            task = self.s.tasks.get(tid)
            if task is not None:
                if record is not None and task.parts[0][0] is not record:
                    break
                record = task.parts[0][0]
            group.append(tid)
        return group

    def host_ready(self, args: Args, post: Args, thread: str) -> None:
        s, tids = self.s, args["tids"]
        tasks = self._step(thread, "copying", "ready", tids)
        self._move(tasks, "COPYING", "HOST_READY")
        for task in tasks:
            if task.page is not None:
                if task.page not in s.frozen or not s.frozen[task.page].landed:
                    self.reject("the step's copy has landed", "SourceFrozen", f"page {task.page}")
                if ("task", task.tid) not in s.holders[task.page]:
                    self.reject("the task holds its page", "PageExclusive", f"page {task.page}")
        self.release_tickets(tasks)
        self.same("tasks", dict.fromkeys(tids, "HOST_READY"), post["tasks"])
        self.same("staged_bytes", s.staged_bytes, post["staged_bytes"])

    def begin_pool_write(self, args: Args, post: Args, thread: str) -> None:
        self._step(thread, "ready", "writing", args["tids"])
        tasks = self._tasks(args["tids"])
        spec = self._landing(tasks, args["tids"])
        landing: Landing = {}
        for rows in post["rows"]:
            key = rows["key"]
            if key in landing or key not in self.s.keys:
                self.differ("rows", list(spec), [entry["key"] for entry in post["rows"]])
            landing[key] = self._same_landing(spec.get(key, NOTHING_LANDS), rows)
            self._same_tags(key, landing[key], rows["tags"])
        if missing := [key for key, rows in spec.items() if key not in landing and rows.slots.size]:
            self.differ("rows", list(spec), [key for key in spec if key not in missing])
        for table, torn in self.s.landing_by_table(landing).items():
            table.pool[torn.slots] = TORN
        for task in tasks:
            task.landing = landing

    def _same_landing(self, spec: KeyLanding, rows: Args) -> KeyLanding:
        """The rows as the code lists them, which are those of the rule in some order."""
        slots, tids = rows["slots"], rows["tids"]
        if slots is not spec.slots and (slots.shape != spec.slots.shape or slots.tobytes() != spec.slots.tobytes()):
            ours, theirs = spec.slots.argsort(kind="stable"), slots.argsort(kind="stable")
            self.same_rows("rows", spec.slots[ours], slots[theirs], spec.slots[ours])
            place = np.empty_like(theirs)
            place[theirs] = ours
            spec = KeyLanding(slots, spec.tids[place], spec.versions[place])
        self.same_rows("rows", spec.tids, tids, slots)
        return spec

    def _same_tags(self, key: str, landing: KeyLanding, logged: dict[str, IntArray]) -> None:
        """The rows that are written carry the identities that were frozen."""
        slots = landing.slots
        expected = [key] if key in self.s.tags and slots.size else []
        self.same("tags", expected, list(logged))
        if landing.tags is not None and expected == [key]:
            self.same_rows("tags", landing.tags, logged[key], slots)
        elif expected and (spec := self.s.tags_at(key, slots)) is not None:
            now = self.s.keys[key].version[slots] == landing.versions
            if np.count_nonzero(now) == now.size:
                self.same_rows("tags", spec, logged[key], slots)
            elif logged[key].shape == spec.shape:
                self.same_rows("tags", spec[now], logged[key][now], slots[now])
            else:
                self.differ("tags", spec.tolist(), logged[key].tolist(), slots)

    def _landing(self, tasks: list[Task], tids: list[int]) -> Landing:
        """Per key the rows to write: the last version of each slot, none that was taken over."""
        record = tasks[0].parts[0][0]
        if not record.disturbed and not tasks[0].deferred and record.owners == tids:
            tags = record.tags.get
            return {key: KeyLanding(record.slots, record.tids, at, tags(key)) for key, at in record.versions.items()}
        parts = [part for task in tasks if not task.abandoned for part in task.parts]
        landing: Landing = {}
        for keys in self.s.families:  # they are in the same records
            if written := [part for part in parts if keys[0] in part[0].versions]:
                landing.update(dict.fromkeys(keys, self._key_landing(keys[0], written, tasks)))
        return landing

    def _key_landing(self, key: str, parts: list[Part], tasks: list[Task]) -> KeyLanding:
        slots = np.concatenate([record.slots[start:stop] for record, start, stop in parts])
        versions = np.concatenate([record.versions[key][start:stop] for record, start, stop in parts])
        tids = np.concatenate([record.tids[start:stop] for record, start, stop in parts])
        for task in tasks:
            if key in task.lost:
                keep = ~((tids == task.tid) & self.s.among(slots, task.lost_slots(key)))
                slots, versions, tids = slots[keep], versions[keep], tids[keep]
        last = self.s.last_of_each(slots)
        if last is not None:
            slots, versions, tids = self._only_last(key, slots, versions, tids, last)
        return KeyLanding(slots, tids, versions)

    def _only_last(
        self, key: str, slots: IntArray, versions: IntArray, tids: IntArray, last: np.ndarray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """A task that wrote a slot again lands the later row; two tasks never land the same slot."""
        kept, whose = slots[last], tids[last]
        for tid in distinct(tids):
            if not self.s.among(slots[tids == tid], kept[whose == tid]).all():
                self.reject("one task writes a row", "SingleWriter", f"key {key!r}, task {tid}")
        return kept, versions[last], whose

    # ---------------------------------------------------------------- the end of a task

    def complete(self, args: Args, post: Args, thread: str) -> None:
        s, tids = self.s, args["tids"]
        tasks = self._step(thread, "writing", "recorded", tids)
        self._move(tasks, "HOST_READY", "WRITTEN")
        self._off_their_pages(tasks)
        for table, rows in s.landing_by_table(tasks[0].landing or {}).items():
            table.pool[rows.slots] = rows.versions
        s.completed += tids
        self._same_records(post)

    def _off_their_pages(self, tasks: list[Task]) -> None:
        holders = self.s.holders
        still = [task.tid for task in tasks if task.page is not None and ("task", task.tid) in holders[task.page]]
        if still:
            self.reject("it has left its page", "ReleasedOnce", f"tasks {still}")

    def fail(self, args: Args, post: Args, thread: str) -> None:
        s, tids = self.s, args["tids"]
        tasks = self._tasks(tids)
        for task in tasks:
            if task.state in ("WRITTEN", "FAILED"):
                self.reject("task is not final", "TaskChain", f"task {task.tid} is {task.state}")
            task.state = "FAILED"
        s.hi, s.lo = ([tid for tid in queue if tid not in tids] for queue in (s.hi, s.lo))
        self.release_tickets(tasks)
        s.writing[thread] = Writing("failed", tids, tasks)
        self.same("tasks", dict.fromkeys(tids, "FAILED"), post["tasks"])
        self.same("staged_bytes", s.staged_bytes, post["staged_bytes"])

    def record_failure(self, args: Args, post: Args, thread: str) -> None:
        self._step(thread, "failed", "recorded", args["tids"])
        self._off_their_pages(self._tasks(args["tids"]))
        self.s.failed += args["tids"]
        self._same_records(post)

    def wake(self, args: Args, post: Args, thread: str) -> None:
        s, tids = self.s, args["tids"]
        self._step(thread, "recorded", "woken", tids)
        del s.writing[thread]
        for tid in tids:
            if (task := s.tasks.get(tid)) is not None:
                task.finished = True
            else:  # drained before its waiters were woken, so it was recorded
                s.unwoken.discard(tid)
        self._same_states(tids, post)
