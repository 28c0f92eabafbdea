"""Slips of a concurrency change, planted one at a time: exploring finds each, and names what it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.builder import BuilderSide
from palimpsest.prefix_cache.controller import PrefixCacheController as Controller
from palimpsest.prefix_cache.copies import Copies
from palimpsest.prefix_cache.engine import EngineSide
from palimpsest.prefix_cache.hits import HitReader
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.prefix_cache.slots import SlotTable
from palimpsest.prefix_cache.tasks import WriteTask
from palimpsest_model_check.explore.explore import explore
from palimpsest_model_check.explore.saved import Schedule, replay
from palimpsest_model_check.explore.scenarios import SCENARIOS

Patch = pytest.MonkeyPatch
PLANTS: dict[str, tuple[Callable[[Patch], None], str, str]] = {}


def plant(scenario: str, breaks: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Registers a slip, the scenario that shows it, and the property (or the kind of finding) that tells."""

    def register(slip: Callable[[Patch], None]) -> Callable[[Patch], None]:
        PLANTS[slip.__name__] = slip, scenario, breaks
        return slip

    return register


def write_pool(*order: str) -> Callable[..., None]:
    """The committer's last stage, its parts in this order."""

    def stage(self: Controller, tasks: list[WriteTask]) -> None:
        write = self.begin_pool_write(tasks)
        parts: dict[str, Callable[[], Any]] = {
            "pool": lambda: [self._pool.write(key, slots, rows) for key, slots, _, rows, _ in write.writes],
            "page": lambda: self._release_pages(tasks),
            "record": lambda: self.complete(tasks, write),
            "wake": lambda: self.wake(tasks),
        }
        for part in order:
            parts[part]()

    return stage


@plant("save-waits-for-the-last-write", "RecordBeforeWake")
def woken_before_the_record(patch):
    patch.setattr(Controller, "_write_pool", write_pool("pool", "page", "wake", "record"))


@plant("one-page", "PageExclusive")
def page_released_before_the_pool_write(patch):
    patch.setattr(Controller, "_write_pool", write_pool("page", "pool", "record", "wake"))


@plant("one-page", "ReleasedOnce")
def page_released_after_the_record(patch):
    patch.setattr(Controller, "_write_pool", write_pool("pool", "record", "page", "wake"))


@plant("delayed-read", "PreservedBeforeOverwrite")
def nothing_is_preserved(patch):
    patch.setattr(HitReader, "copy_aside", lambda self, key, slots, spared=(): [])


@plant("delayed-read", "PreservedBeforeOverwrite")
def versions_are_not_checked(patch):
    patch.setattr(HitReader, "_changed", lambda self, read: None)


@plant("hit-before-the-commit", "ReadIntegrity")
def rows_in_transit_are_not_waited_for(patch):
    real = HitReader.begin_fetch

    def forgets(self, read):
        real(self, read)
        read.join_tids = []

    patch.setattr(HitReader, "begin_fetch", forgets)


@plant("same-step-hit", "ReleasedOnce")
def a_hit_of_the_same_step_is_not_planned_again(patch):
    patch.setattr(EngineSide, "_overtaken", lambda self, begun, slots: [])


@plant("flush-during-a-save", "deadlock")
def locks_are_taken_in_two_orders(patch):
    real = PrefixCacheManager._commit

    def inverted(self):
        with self._controller.lock, self._state_lock:
            self._controller.has_failed()
        real(self)

    patch.setattr(PrefixCacheManager, "_commit", inverted)


@plant("save-waits-for-the-last-write", "deadlock")
def committer_looks_at_its_queues_before_it_takes_the_lock(patch):
    def wait(self):
        if not (self._queue_hi or self._queue_lo or self._closing):
            with self._work:
                self._work.wait()
        return bool(self._queue_hi or self._queue_lo)

    patch.setattr(Controller, "_wait_for_work", wait)


@plant("save-waits-for-a-page", "deadlock")
def a_page_comes_free_and_nobody_is_told(patch):
    patch.setattr("palimpsest_model_check.explore.primitives.CoCondition.notify_all", lambda self: None)


@plant("save-waits-for-the-last-write", "deadlock")
def a_task_ends_and_its_waiters_sleep_on(patch):
    real = WriteTask.finish

    def silent(self):
        real(self)
        return ()

    patch.setattr(WriteTask, "finish", silent)


@plant("ended-while-claimed", "TaskChain")
def a_claimed_task_is_queued_again(patch):
    real = Controller._raise

    def again(self, task):
        if task.state is TaskState.COPYING:
            self._queue_hi.append(task.tid)
            return True
        return real(self, task)

    patch.setattr(Controller, "_raise", again)


@plant("consumed-twice", "ConsumeOnce")
def a_step_is_found_and_taken_in_two_critical_sections(patch):
    real = BuilderSide.take_step

    def twice(self, step_id, req_ids):
        with self._state_lock:
            found = self._step_ctxs.get(step_id)
        with self._state_lock:
            if found is not None:
                self._step_ctxs[step_id] = found
        return real(self, step_id, req_ids)

    patch.setattr(BuilderSide, "take_step", twice)


@plant("shared-clone", "BudgetExact")
def a_ticket_is_given_back_with_its_first_task(patch):
    def release(self, tasks):
        for task in tasks:
            for ticket in task.budget_tickets():
                self._staged_bytes -= ticket.nbytes

    patch.setattr(Controller, "_release_tickets", release)


@plant("older-tenant-writes-late", "SingleWriter")
def rows_taken_over_are_written_all_the_same(patch):
    patch.setattr(WriteTask, "add_reassigned", lambda self, key, slots: None)


@plant("slot-taken-back", "TenantIsolation")
def a_write_commits_slots_that_are_another_tasks_by_now(patch):
    def commit(self, key, slots, tids):
        table = self._keys[key]
        table.writer[slots] = 0
        table.status[slots] = 2

    patch.setattr(SlotTable, "commit", commit)


@plant("aborted-while-deferred", "SourceFrozen")
def deferred_rows_are_not_cloned(patch):
    patch.setattr(Copies, "clone", lambda self, live: live)


@plant("failure-of-a-hit", "RecordBeforeWake")
def failure_wakes_before_its_record(patch):
    def fail_all(self, tasks, cause):
        failed = self.fail(tasks, cause)
        if failed:
            self._release_pages(failed)
            self.wake(failed)
            self.record_failure(failed)

    patch.setattr(Controller, "_fail_all", fail_all)


@plant("failure-of-a-hit", "ReleasedOnce")
def a_failed_write_keeps_its_page(patch):
    def fail_all(self, tasks, cause):
        failed = self.fail(tasks, cause)
        if failed:
            self.record_failure(failed)
            self.wake(failed)

    patch.setattr(Controller, "_fail_all", fail_all)


@plant("failure-of-a-hit", "ReleasedOnce")
def a_read_is_not_dropped_when_its_fetch_fails(patch):
    patch.setattr(HitReader, "drop_read", lambda self, reads: None)


@plant("wait-runs-out", "exception")
def a_wait_that_runs_out_says_so_in_its_own_words(patch):
    patch.setattr(Controller, "_late", lambda self, task, what: RuntimeError(f"{task} is late"))


@pytest.mark.parametrize("name", PLANTS)
def test_the_slip_is_found_within_the_bound_and_found_again(name, monkeypatch):
    slip, scenario, breaks = PLANTS[name]
    with monkeypatch.context() as patch:
        slip(patch)
        outcome = explore(SCENARIOS[scenario], bound=1, schedules=5000)
        assert outcome.found is not None, f"not found in {outcome.schedules} schedules"
        finding = outcome.found.finding
        assert finding is not None
        assert breaks in (finding.kind, *finding.properties), str(finding)
        schedule = Schedule.of(outcome.found)
        again, missed = replay(scenario, schedule.turns)
        assert (again.finding, missed) == (finding, 0)
    sound, _ = replay(scenario, schedule.turns)
    assert sound.finding is None, str(sound.finding)
