"""Pages, tickets, bytes and reads are given back exactly once, on every path."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import AbsentRowsError, BadStepError, InvariantError, StepConsumedError
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.staging import StagingBufferHolder
from tests.support import Gate, Part, fail_at, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def nothing_held(s) -> None:
    assert not list(s.cache._pending_reads)
    assert not any(pins.any() for pins in s.cache._hits.pending._pins.values())
    assert not any(s.cache._controller._staging_pool._busy)
    assert s.cache._controller._staged_bytes == 0


def test_when_planning_one_of_several_keys_raises_the_keys_planned_before_are_let_go(script, monkeypatch):
    s = script()
    s.run({"a": prefill([0], 4)}, "k")
    real = s.cache._hits.plan

    def plan(slots, key, req_id):
        if key == "k":
            raise MemoryError("planted")
        return real(slots, key, req_id)

    monkeypatch.setattr(s.cache._hits, "plan", plan)
    with pytest.raises(MemoryError, match="planted"):
        s.begin({"b": hit([0, 1], 4, 1)}, finished=["a"])
    nothing_held(s)
    monkeypatch.undo()
    outputs = s.run({"b": hit([0, 1], 4, 1)})
    assert torch.equal(outputs.hidden_states["b"][:4], s.rows_of("a", 0, 4))


def test_a_planned_read_of_a_key_that_the_step_does_not_produce_is_dropped(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)}, "k")
    outputs = s.run({"b": hit([0, 1], 4, 1)}, finished=["a"])
    assert "k" not in outputs.mm_outputs
    s.settle()
    nothing_held(s)


def test_reads_of_a_step_that_never_publishes_are_dropped_by_the_next_begin(script):
    s = script()
    s.run({"a": prefill([0], 4)})
    for _ in range(3):
        s.begin({"b": hit([0, 1], 4, 1)})
    s.idle(finished=["a"])
    s.settle()
    nothing_held(s)


def test_reads_of_requests_that_are_not_asked_for_are_dropped(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)})
    step = s.step({"b": hit([0, 1], 4, 1), "c": hit([0, 2], 4, 1)})
    outputs = s.cache.materialize(step, ["c"])
    assert set(outputs.hidden_states) == {"c"}
    s.settle()
    nothing_held(s)


def test_a_request_id_given_twice_is_served_once_and_nothing_is_released_twice(script):
    s = script()
    s.run({"a": prefill([0], 4)})
    step = s.step({"b": hit([0, 1], 4, 1)})
    outputs = s.cache.materialize(step, ["b", "b"])
    assert torch.equal(outputs.hidden_states["b"], torch.cat([s.rows_of("a", 0, 4), s.rows_of("b", 4, 5)]))
    nothing_held(s)


def test_a_step_is_consumed_exactly_once_also_when_its_outputs_cannot_be_had(script):
    s = script()
    step = s.step({"a": hit([0, 1], 4, 1)})
    with pytest.raises(AbsentRowsError):
        s.cache.materialize(step, ["a"])
    for consume in (lambda: s.cache.materialize(step, ["a"]), lambda: s.cache.discard_step(step)):
        with pytest.raises(StepConsumedError, match=f"step {step} is unknown or was consumed"):
            consume()
    nothing_held(s)


def test_a_request_outside_the_step_is_refused_and_the_step_can_still_be_consumed(script):
    s = script()
    step = s.step({"a": prefill([0], 4)})
    with pytest.raises(BadStepError, match=r"\['ghost'\] are outside the save snapshot"):
        s.cache.materialize(step, ["a", "ghost"])
    assert torch.equal(s.cache.materialize(step, ["a"]).hidden_states["a"], s.rows_of("a", 0, 4))
    nothing_held(s)


def test_a_page_is_busy_until_its_step_is_consumed_and_its_rows_are_in_the_pool(script):
    s = script(eager=False)
    with held_at(s.cache._pool, "write") as gate:
        step = s.step({"a": prefill([0], 4)})
        gate.wait_until_reached()
        tid = s.cache._join_next_step_tids[0]
        page = s.cache._step_ctxs[step].d2h.staging_slot
        busy = s.cache._controller._staging_pool._busy[page]
        assert busy == {StagingBufferHolder.for_step(step), StagingBufferHolder.for_task(tid)}
        s.cache.materialize(step, ["a"])
        assert busy == {StagingBufferHolder.for_task(tid)}
    s.settle()
    assert not busy


def test_the_bytes_of_a_shared_clone_go_back_with_its_last_request_and_once(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 2), "b": prefill([1], 2)}, "d")
    assert s.cache._controller._staged_bytes == 4 * 16
    s.idle(finished=["a"])
    s.settle()
    assert s.cache._controller._staged_bytes == 4 * 16
    s.idle(finished=["b"])
    s.settle()
    s.idle()
    nothing_held(s)


def test_the_budget_flushes_the_oldest_rows_and_goes_on_with_a_new_write(script, eager):
    s = script(DEFERRED, eager=eager, gpu_staging_bytes=3 * 16)
    for position in range(7):
        s.run({"a": more([2, 3], position)}, "d")
        assert s.cache._controller._staged_bytes <= 3 * 16
    assert s.cache.stats.flushes == 2
    outputs = s.run({"c": hit([2, 4], 4, 1)}, "d", finished=["a"])
    assert torch.equal(outputs.mm_outputs["d"]["c"][:4], s.rows_of("a", 0, 4, "d"))


def test_discarding_a_step_lets_its_reads_and_its_page_go(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)})
    reads = Gate()
    s.cache._prefetch_pool.submit(reads.wait_here)
    step = s.step({"b": hit([0, 1], 4, 1)}, finished=["a"])
    assert len(s.cache._pending_reads) == 1
    s.cache.discard_step(step)
    reads.open()
    s.settle()
    nothing_held(s)


@pytest.mark.parametrize("consume", ["materialize", "discard_step", "nothing"])
def test_shutdown_releases_what_steps_reads_and_tasks_hold(script, eager, consume):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "d")
    step = s.step({"a": more([0, 1], 4), "b": hit([0, 2], 4, 1)}, "d")
    if consume == "materialize":
        s.cache.materialize(step, ["a", "b"])
    elif consume == "discard_step":
        s.cache.discard_step(step)
    s.cache.shutdown()
    nothing_held(s)


def test_a_failing_fetch_lets_every_read_of_the_step_go(script):
    s = script()
    s.run({"a": prefill([0], 4)}, "k")
    reads = Gate()
    s.cache._prefetch_pool.submit(reads.wait_here)
    step = s.step({"b": hit([0, 1], 4, 1)}, "k", finished=["a"])
    fail_at(s.cache._pool, "read_into", OSError("planted"))
    with pytest.raises(OSError, match="planted"):
        s.cache.materialize(step, ["b"])
    reads.open()
    nothing_held(s)


@pytest.mark.forges("takes holds by hand that no action takes")
def test_the_invariants_tell_what_is_held_although_all_is_quiet(script):
    s = script()
    step = s.step({"a": prefill([0], 4)})
    s.cache.materialize(step, ["a"])
    s.cache._controller._staging_pool._busy[0].add(StagingBufferHolder.for_step(step))
    with pytest.raises(InvariantError, match=f"page 0 is held by step {step}"):
        s.cache.check_invariants()
    s.cache._controller._staging_pool._busy[0].clear()
    with s.cache._state_lock:
        read = s.cache._slot_ref(torch.tensor([0]), HIDDEN_KEY, "a")
    with pytest.raises(InvariantError, match=f"read {read.rid} is pending without a step"):
        s.cache.check_invariants()
    s.cache._hits.drop_read([read])
    s.cache._controller._staged_bytes += 5
    with pytest.raises(InvariantError, match="5 bytes are charged, and live clones take 0"):
        s.cache.check_invariants()
    s.cache._controller._staged_bytes -= 5
    s.settle()
    s.idle()
    s.cache._slot_status.get_slot_status(HIDDEN_KEY).writer[3] = 9
    with pytest.raises(InvariantError, match="1 slots are in transit without a task, or committed with one"):
        s.cache.check_invariants()
    s.cache._slot_status.get_slot_status(HIDDEN_KEY).writer[3] = 0


def test_a_hit_of_a_request_without_new_tokens_in_the_step_is_let_go(script):
    s = script()
    s.run({"a": prefill([0], 4)})
    step = s.step({"a": more([0, 1], 4), "b": Part([0], 4, 0, hit=4)})
    outputs = s.cache.materialize(step, ["a", "b"])
    assert torch.equal(outputs.hidden_states["b"], s.rows_of("a", 0, 4))
    nothing_held(s)
