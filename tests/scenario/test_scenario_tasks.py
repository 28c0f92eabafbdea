"""Section B of the scenarios: records of writes, tasks that are claimed once, and steps without a forward."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import BadStepError, WriteFailedError
from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.slots import COMMITTED
from tests.scenario.test_scenario_copies import assert_pool
from tests.scenario.test_scenario_visibility import assert_rows
from tests.support import Background, fail_at, held_at, hit, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")


def test_S28_a_written_task_has_its_record_before_anyone_is_woken(script):
    s = script(eager=False)
    controller = s.cache._controller
    with held_at(controller, "complete") as complete, held_at(controller, "wake") as wake:
        step = s.step({"a": prefill([0], 4)})
        (task,) = controller._tasks.values()
        complete.wait_until_reached()
        assert not task.done.is_set()
        assert not task.is_finished()
        complete.open()
        wake.wait_until_reached()
        assert not task.done.is_set()
        assert controller._completed == [task.tid]
        waiter = Background(lambda: (controller.join([task.tid]), s.begin({"b": hit([0, 1], 4, 1)})))
        wake.open()
        waiter.result()
    assert s.cache._slot_status.get_slot_status(HIDDEN_KEY).status[:4].tolist() == [COMMITTED] * 4
    assert_rows(s, s.cache.materialize(s.save(), ["b"]), "b", ("a", 0, 4), ("b", 4, 5), keys=(HIDDEN_KEY,))
    s.cache.discard_step(step)


def test_S28_a_failed_task_has_its_record_before_anyone_is_woken(script):
    s = script(eager=False)
    controller = s.cache._controller
    fail_at(s.cache._pool, "write", OSError("planted"))
    with held_at(controller, "record_failure") as record, held_at(controller, "wake") as wake:
        s.step({"a": prefill([0], 4)})
        (task,) = controller._tasks.values()
        record.wait_until_reached()
        assert not task.done.is_set()
        assert not task.host_ready.is_set() or task.state is TaskState.FAILED
        record.open()
        wake.wait_until_reached()
        assert not task.done.is_set()
        assert controller._failed == [task.tid]
        wake.open()
        with pytest.raises(WriteFailedError, match="request 'a'"):
            controller.join([task.tid])
        with pytest.raises(WriteFailedError, match=r"request 'a'.*slots \[0, 1, 2, 3\]"):
            s.begin({"b": hit([0, 1], 4, 1)})


def test_S29_a_claimed_task_that_is_escalated_again_is_written_and_released_once(script):
    s = script(DEFERRED, eager=False, gpu_staging_bytes=4 * 16)
    s.run({"a": prefill([0], 4)}, "d")
    s.settle()
    writes, real = [], s.cache._pool.write
    s.cache._pool.write = lambda key, slots, rows: (writes.append((key, slots.tolist())), real(key, slots, rows))
    controller = s.cache._controller
    tid = s.cache._request_tasks.deferred["a"].tid
    with held_at(controller, "claim_copy", after=True) as claimed:
        s.idle(finished=["a"])
        claimed.wait_until_reached()
        assert controller.get_task(tid).state is TaskState.COPYING
        s.begin({"b": prefill([1], 4)})
        with held_at(controller, "escalate", after=True) as escalated:
            save = Background(lambda: s.save("d"))  # over the budget: escalates what is not finished
            escalated.wait_until_reached()
            assert not controller._queue_hi
            assert not controller._queue_lo
        claimed.open()
        step = save.result()
    s.settle()
    assert writes.count(("d", [0, 1, 2, 3])) == 1
    assert controller._staged_bytes == 4 * 16
    outputs = s.run({"c": hit([0, 2], 4, 1)}, "d", finished=["b"])
    assert_rows(s, outputs, "c", ("a", 0, 4), ("c", 4, 5), keys=(HIDDEN_KEY, "d"))
    s.cache.discard_step(step)


def test_S30_an_idle_step_writes_nothing_through_a_slot_map_that_was_left_behind(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    s.run({"c": prefill([0], 4)}, "k", "d", finished=["a"])
    s.begin({})
    dummy = torch.full((4, 4), 99.0)
    s.view.slots = torch.arange(4)
    counts = {"num_tokens_unpadded": 0, "num_tokens_padded": 4}
    with pytest.raises(BadStepError, match=r"4 slots .* and the step 0 tokens"):
        s.cache.save_outputs(dummy, {"k": dummy, "d": dummy}, **counts)
    s.view.slots = torch.empty(0, dtype=torch.int64)
    s.cache.discard_step(s.cache.save_outputs(dummy, {"k": dummy, "d": dummy}, **counts))
    outputs = s.run({"b": hit([0, 1], 4, 1)}, "k", "d", finished=["c"])
    assert_rows(s, outputs, "b", ("c", 0, 4), ("b", 4, 5))


def test_S30_the_padding_of_a_step_writes_nothing(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"c": prefill([0], 4)}, "k", "d")
    s.begin({"b": prefill([1], 2)})
    padded = {key: torch.cat([s._rows(key), torch.full((6, 4), 99.0)]) for key in KEYS}
    hidden = padded.pop(HIDDEN_KEY)
    step = s.cache.save_outputs(hidden, padded, num_tokens_unpadded=2, num_tokens_padded=8)
    assert_rows(s, s.cache.materialize(step, ["b"]), "b", ("b", 0, 2))
    s.idle(finished=["b", "c"])
    s.settle()
    for key in KEYS:
        assert_pool(s, key, range(6), ("c", 0, 4), ("b", 0, 2))
        assert not (s.pool(key, range(6, 64)) == 99.0).any()
