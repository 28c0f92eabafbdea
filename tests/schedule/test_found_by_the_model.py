"""Interleavings that the model checker found, each with the property that the code broke there."""

from __future__ import annotations

import pytest

from palimpsest.errors import WriteFailedError
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from tests.support import PATIENT_S, Gate, fail_at, hit, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def test_a_read_that_joins_a_failed_task_raises_also_when_the_failure_was_drained_before_it_waits(script):
    """ReadIntegrity: Publish, BeginFetch, ClaimCopy, Fail, RecordFailure, Drain, JoinBegin: the task is unknown by
    now and looks written, and the pool row is an earlier tenant's."""
    s = script(eager=False)
    s.run({"z": prefill([0], 4)})
    s.settle()
    reads = Gate()
    s.cache._prefetch_pool.submit(reads.wait_here)
    fail_at(s.cache._pool, "write", OSError("planted"))
    step = s.step({"a": prefill([0], 4), "b": hit([0, 1], 4, 1)}, finished=["z"])
    future = s.cache._step_ctxs[step].hit_prefetch["b"][HIDDEN_KEY]
    with pytest.raises(WriteFailedError):
        s.cache._controller.join(s.cache._join_next_step_tids)
    with pytest.raises(WriteFailedError):
        s.begin({"c": prefill([3], 1)})  # drains the failure
    assert not s.cache._controller._tasks
    reads.open()
    with pytest.raises(WriteFailedError, match="failed before done"):
        future.result(PATIENT_S)
    s.cache.discard_step(step)


def test_a_save_after_a_builder_drained_a_failure_raises_before_it_claims_a_page_or_bytes(script):
    """PageExclusive: the page of the failed step may still be written by a copy that has not landed."""
    s = script(DEFERRED, eager=False)
    first = s.step({"a": prefill([0], 4)})
    s.settle()
    fail_at(s.cache._pool, "write", OSError("planted"))
    second = s.step({"b": prefill([1], 4)}, finished=["a"])
    with pytest.raises(WriteFailedError):
        s.cache._controller.join(s.cache._join_next_step_tids)
    s.cache._begun = s.cache._begin(type("S", (), {"hits": {}, "num_scheduled": {"c": 1}})())  # begun before it failed
    with pytest.raises(WriteFailedError):
        s.cache.materialize(first, ["a"])  # the builder drains
    before = len(s.trace.events)
    with pytest.raises(WriteFailedError):
        s.save("d")
    assert not {event.action for event in s.trace.events[before:]} & {"reserve", "claim_page_begin"}
    s.cache.discard_step(first)
    s.cache.discard_step(second)


def test_bytes_that_come_free_while_the_engine_looks_for_something_to_flush_are_taken(script):
    """BlockedSaveProceeds: Reserve fails, HostReady gives the last ticket back, Complete, and nothing is left to
    flush: the bytes are there now."""
    talker = ModelCachePolicy(needs_full_hidden_states=False, deferred_keys=frozenset({"d"}))
    s = script(talker, eager=False, gpu_staging_bytes=4 * 16)
    writing, real = Gate(), s.cache._controller.host_ready
    s.cache._controller.host_ready = lambda tasks: (writing.wait_here(), real(tasks))[1]
    s.run({"a": prefill([0], 4)}, "d", hidden=False)
    s.idle(finished=["a"])  # a's rows are on their way and still charged
    writing.wait_until_reached()
    s.begin({"b": prefill([1], 4)})
    looking = s.cache.seal_oldest

    def looks_after_the_write_is_done() -> list[int]:
        writing.open()
        s.settle()
        return looking()

    s.cache.seal_oldest = looks_after_the_write_is_done
    s.cache.materialize(s.save("d", hidden=False), ["b"])
    assert s.cache._controller._staged_bytes == 4 * 16


def test_a_save_over_its_budget_waits_for_the_task_that_it_saw_and_drains_its_record_before_it_tries_again(script):
    """BlockedSaveProceeds: SealOldest finds no open task and one that is unfinished, which ends right behind it: the
    save looks once, so that it does not go on as if nothing had been there."""
    talker = ModelCachePolicy(needs_full_hidden_states=False, deferred_keys=frozenset({"d"}))
    s = script(talker, eager=False, gpu_staging_bytes=4 * 16)
    writing, real = Gate(), s.cache._controller.host_ready
    s.cache._controller.host_ready = lambda tasks: (writing.wait_here(), real(tasks))[1]
    s.run({"a": prefill([0], 4)}, "d", hidden=False)
    s.idle(finished=["a"])
    writing.wait_until_reached()
    s.begin({"b": prefill([1], 4)})
    looking = s.cache.seal_oldest

    def sees_it_end_right_behind() -> list[int]:
        found = looking()
        writing.open()
        s.settle()
        return found

    s.cache.seal_oldest = sees_it_end_right_behind
    s.cache.materialize(s.save("d", hidden=False), ["b"])
    after = s.trace.events[next(n for n, event in enumerate(s.trace.events) if event.action == "seal_oldest") :]
    assert after[0].post == {"sealed": [], "flushed": [1]}
    of_the_save = [e.action for e in after if e.action in ("join_begin", "join_end", "drain", "reserve")]
    the_scripts_own_wait = ["join_begin", "join_end"]
    assert of_the_save == [*the_scripts_own_wait, "join_begin", "join_end", "drain", "reserve"]


def test_a_begin_that_raises_for_a_failed_write_leaves_the_begun_steps_reads_to_shutdown(script):
    """ReleasedOnce: what is let go is let go by an action that says so."""
    s = script(eager=False)
    s.run({"z": prefill([0], 4)})
    s.settle()
    reads = Gate()
    s.cache._prefetch_pool.submit(reads.wait_here)
    s.begin({"b": hit([0, 1], 4, 1)}, finished=["z"])
    fail_at(s.cache._pool, "write", OSError("planted"))
    step = s.save()
    with pytest.raises(WriteFailedError):
        s.cache._controller.join(s.cache._join_next_step_tids)
    with pytest.raises(WriteFailedError):
        s.begin({"c": hit([0, 2], 4, 1)})
    reads.open()
    s.cache.discard_step(step)
