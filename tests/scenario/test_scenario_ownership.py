"""Section D of the scenarios, and what of section C concerns a prefix cache: who holds what, and failure."""

from __future__ import annotations

import random

import pytest
import torch

from palimpsest.errors import StagingTimeoutError, StepConsumedError
from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.slots import COMMITTED
from palimpsest.prefix_cache.staging import StagingBufferHolder
from tests.scenario.test_scenario_copies import assert_pool, join_all
from tests.scenario.test_scenario_visibility import assert_rows
from tests.support import HASTY_S, held_at, hit, more, prefill, row

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")


@pytest.mark.forges("plants rows that no task wrote")
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("planted", [("z", 0, 2), ("a", 1, 2), ("a", 0, 3)], ids=["tenant", "generation", "position"])
def test_S38_a_row_of_another_identity_that_is_planted_in_the_pool_does_not_look_right(script, eager, key, planted):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    s.idle(finished=["a"])
    s.settle()
    s.idle()
    s.cache._pool.write(key, torch.tensor([2]), row(*planted, key)[None])
    outputs = s.run({"b": hit([0, 1], 4, 1)}, "k", "d")
    with pytest.raises(AssertionError, match=key):
        assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 5))
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 5), keys=set(KEYS) - {key})


@pytest.mark.parametrize("follow", ["idle steps", "decode steps"])
def test_S39_every_begin_takes_in_finished_writes_and_nothing_stays_held(script, eager, follow):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4), "b": prefill([1], 1)}, "k", "d")
    for position in range(1, 4):
        s.settle()
        if follow == "idle steps":
            s.idle(finished=["a"] if position == 1 else [])
        else:
            s.begin({"b": more([1], position)}, finished=["a"] if position == 1 else [])
    s.settle()
    s.idle()
    assert [task.req_id for task in s.cache._controller._tasks.values()] == ["b"]  # its open deferred task
    assert not any(s.cache._controller._staging_pool._busy)
    for key in KEYS:
        assert s.cache._slot_status.get_slot_status(key).status[:4].tolist() == [COMMITTED] * 4
        assert_pool(s, key, range(4), ("a", 0, 4))


def test_S40_the_completion_of_an_aborted_requests_write_is_taken_in_and_frees_what_it_held(script):
    s = script(DEFERRED, eager=False)
    with held_at(s.cache._pool, "write") as write:
        step = s.step({"a": prefill([0], 4)}, "k", "d")
        write.wait_until_reached()
        s.cache.discard_step(step)
        s.idle(finished=["a"])
        assert any(s.cache._controller._staging_pool._busy)
    s.settle()
    s.idle()
    assert not s.cache._controller._tasks
    assert not any(s.cache._controller._staging_pool._busy)
    assert s.cache._controller._staged_bytes == 0
    outputs = s.run({"b": hit([0, 1], 4, 1)}, "k", "d")
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 5))


def test_S42_a_save_that_waits_for_pages_of_its_own_threads_steps_ends_and_names_them(script, eager):
    s = script(eager=eager, staging_depth=2, staging_claim_timeout_s=HASTY_S)
    steps = [s.step({"a": prefill([0], 4)}), s.step({"a": more([0, 1], 4)})]
    s.settle()
    s.begin({"a": more([0, 1], 5)})
    with pytest.raises(StagingTimeoutError, match=r"2 unconsumed.*page 0 held by step 1; page 1 held by step 2"):
        s.save()
    s.cache.discard_step(steps[1])
    outputs = s.cache.materialize(s.save(), ["a"])
    assert_rows(s, outputs, "a", ("a", 5, 6), keys=(HIDDEN_KEY,))
    assert_rows(s, s.cache.materialize(steps[0], ["a"]), "a", ("a", 0, 4), keys=(HIDDEN_KEY,))


@pytest.mark.forges("releases holds a second time")
def test_S43_a_second_release_of_a_page_takes_nothing_from_its_next_holder(script, eager):
    s = script(eager=eager, staging_depth=1)
    staging = s.cache._controller.staging
    first = s.step({"a": prefill([0], 4)})
    s.settle()
    s.cache.discard_step(first)
    with pytest.raises(StepConsumedError):
        s.cache.discard_step(first)
    second = s.step({"b": prefill([1], 4)})
    s.settle()
    staging.release_page(0, [StagingBufferHolder.for_step(first), StagingBufferHolder.for_task(1)])
    assert staging.holders_of(0) == [StagingBufferHolder.for_step(second)]
    assert_rows(s, s.cache.materialize(second, ["b"]), "b", ("b", 0, 4), keys=(HIDDEN_KEY,))
    assert staging.holders_of(0) == []


@pytest.mark.forges("releases a ticket a second time")
def test_S43_a_second_release_of_a_ticket_gives_no_bytes_back(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4), "b": prefill([1], 2)}, "d")
    task = s.cache._request_tasks.deferred["a"]
    s.idle(finished=["a"])
    s.settle()
    for _ in range(2):
        s.cache._controller._release_staged_bytes(task)
        s.cache._controller._fail_all([task], OSError("late"))
        assert s.cache._controller._staged_bytes == 6 * 16  # b still holds the clone
    s.idle(finished=["b"])
    s.settle()
    s.cache._controller._release_staged_bytes(task)
    assert s.cache._controller._staged_bytes == 0


@pytest.mark.parametrize("where", ["begin_fetch", "_gather_pool"])
def test_S44_a_slot_that_is_being_read_is_preserved_when_it_is_taken(script, eager, where):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0, 1], 8)}, "k", "d")
    s.idle(finished=["a"])
    s.settle()
    with held_at(s.cache._hits, where) as reading:
        step = s.step({"c": hit([0, 1, 2], 8, 1)}, "k", "d")
        reading.wait_until_reached()
        s.run({"b": prefill([1, 0], 6)}, "k", "d", finished=["c"])  # takes both blocks, the other way round
        s.idle(finished=["b"])
        join_all(s)
        reading.open()
        outputs = s.cache.materialize(step, ["c"])
    assert_rows(s, outputs, "c", ("a", 0, 8), ("c", 8, 9))
    for key in KEYS:
        assert_pool(s, key, [4, 5, 6, 7, 0, 1], ("b", 0, 6))


@pytest.mark.parametrize("seed", range(5))
def test_S45_pins_pages_tickets_and_tasks_add_up_after_every_operation(script, eager, seed):
    s = script(DEFERRED, eager=eager, gpu_staging_bytes=24 * 16, num_blocks=6)
    dice, open_steps, alive, full = random.Random(seed), [], {}, {}
    for turn in range(40):
        ended, alive = (alive, {}) if dice.random() < 0.4 else ({}, alive)
        blocks = dice.sample(range(6), 3)
        new = {f"{turn:02d}{number}": prefill([blocks[number]], dice.randint(1, 4)) for number in range(2)}
        full = {block: name for block, name in full.items() if block not in blocks}
        if full:
            new[f"{turn:02d}h"] = hit([dice.choice(list(full)), blocks[2]], 4, 1)
        full |= {part.blocks[0]: name for name, part in new.items() if part.count == 4}
        open_steps.append((s.step(new, "k", "d", finished=ended), list(new)))
        alive = {**alive, **new}
        assert_conserved(s)
        while len(open_steps) > dice.randint(0, 3):
            step, names = open_steps.pop(dice.randrange(len(open_steps)))
            s.cache.materialize(step, names) if dice.random() < 0.7 else s.cache.discard_step(step)
            assert_conserved(s)
    for step, _ in open_steps:
        s.cache.discard_step(step)
    s.idle(finished=alive)
    s.settle()
    s.idle()
    assert not s.cache._controller._tasks
    assert s.cache._controller._staged_bytes == 0
    assert not any(s.cache._controller._staging_pool._busy)


def assert_conserved(s):
    """Each hold has one who holds it, and each one who must hold has it."""
    s.settle()
    controller, hits = s.cache._controller, s.cache._hits
    assert controller.check() == []
    assert s.cache._slot_status.check() == []
    held = [holder for holders in controller._staging_pool._busy for holder in holders]
    assert sorted(held) == sorted(StagingBufferHolder.for_step(step) for step in s.cache.unconsumed_steps())
    pinned = sum(read.pool_slots.size for read in hits.pending)
    assert sum(int(pins.sum()) for pins in hits.pending._pins.values()) == pinned
    states = {task.state for task in controller.unfinished()}
    assert states <= {TaskState.PENDING}
    assert 0 <= controller._staged_bytes <= controller.budget_bytes


@pytest.mark.forges("publishes completion records again")
def test_S47_a_late_or_repeated_completion_of_a_request_that_is_gone_changes_nothing(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    tid = s.cache._request_tasks.deferred["a"].tid
    s.idle(finished=["a"])
    s.settle()
    with s.cache._controller.lock:
        s.cache._controller._completed += [tid, tid, 9999]
    s.idle(finished=["a", "ghost"])
    with s.cache._controller.lock:
        s.cache._controller._completed.append(tid)
    s.run({"c": prefill([0], 2)}, "k", "d")
    s.cache._controller.escalate([tid, 9999])
    s.cache._controller.join([tid, 9999])
    s.run({"c": more([0], 2, 2)}, "k", "d")
    outputs = s.run({"b": hit([0, 1], 4, 1)}, "k", "d", finished=["c"])
    assert_rows(s, outputs, "b", ("c", 0, 4), ("b", 4, 5))
