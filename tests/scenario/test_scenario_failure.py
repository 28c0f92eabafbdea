"""Section D of the scenarios: what happens to rows, steps and requests when something fails or comes late."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palimpsest.errors import AbsentRowsError, BadStepError, WriteFailedError
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.slots import COMMITTED
from tests.scenario.test_scenario_copies import assert_pool
from tests.scenario.test_scenario_visibility import assert_rows
from tests.support import Background, fail_at, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")


def test_S48_a_preempted_request_comes_back_with_a_hit_while_its_writes_are_in_flight(script):
    s = script(DEFERRED, eager=False)
    with held_at(s.cache._pool, "write") as write:
        first = s.step({"a": prefill([0, 1], 8)}, "k", "d")
        write.wait_until_reached()
        s.begin({"a": hit([0, 2], 4, 4)}, preempted=["a"])
        write.open()
        outputs = s.cache.materialize(s.save("k", "d"), ["a"])
    assert_rows(s, outputs, "a", ("a", 0, 4, 0), ("a", 4, 8, 1))
    s.cache.discard_step(first)
    later = s.run({"b": hit([0, 1, 3], 8, 1), "c": hit([0, 2, 4], 8, 1)}, "k", "d", finished=["a"])
    assert_rows(s, later, "b", ("a", 0, 8, 0), ("b", 8, 9))
    assert_rows(s, later, "c", ("a", 0, 4, 0), ("a", 4, 8, 1), ("c", 8, 9))


@pytest.mark.parametrize("consume", ["discard_step", "materialize"])
def test_S49_a_failed_write_is_raised_by_every_later_entry_whoever_took_the_first_error(script, consume):
    s = script(eager=False)
    s.run({"z": prefill([0], 4)}, "k")
    s.settle()
    s.idle(finished=["z"])
    fail_at(s.cache._pool, "write", OSError("planted"))
    step = s.step({"a": prefill([0], 4)}, "k")
    with pytest.raises(WriteFailedError, match="request 'a'"):
        s.cache._controller.join(list(s.cache._controller._tasks))  # whoever waits for it is told, and forgets
    if consume == "materialize":
        with pytest.raises(WriteFailedError, match="request 'a'"):
            s.cache.materialize(step, ["a"])
    s.cache.discard_step(step)
    for _ in range(3):
        with pytest.raises(WriteFailedError, match=r"request 'a', state=FAILED, slots \[0, 1, 2, 3\]") as error:
            s.begin({"b": hit([0, 1], 4, 1)})
        assert "planted" in str(error.value.__cause__)


def test_S49_a_failed_write_of_the_eager_mode_is_raised_by_the_save_and_by_every_later_entry(script):
    s = script()
    fail_at(s.cache._pool, "write", OSError("planted"))
    with pytest.raises(OSError, match="planted"):
        s.step({"a": prefill([0], 4)})
    assert s.cache.unconsumed_steps() == []
    for _ in range(2):
        with pytest.raises(WriteFailedError, match="request 'a'"):
            s.begin({"b": hit([0, 1], 4, 1)})


def test_S51_a_hit_on_a_block_that_is_being_recomputed_gets_whole_new_rows_or_raises(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([1], 2)}, "k", "d")
    half = s.step({"b": hit([1, 2], 4, 1)}, "k", "d")
    s.run({"a": more([1], 2, 2)}, "k", "d")
    whole = s.step({"c": hit([1, 3], 4, 1)}, "k", "d", finished=["b"])
    with pytest.raises(AbsentRowsError, match=r"2 of 4 .*slots \[6, 7\]"):
        s.cache.materialize(half, ["b"])
    assert_rows(s, s.cache.materialize(whole, ["c"]), "c", ("a", 0, 4), ("c", 4, 5))


@pytest.mark.parametrize("refused", [False, True])
def test_S52_deferred_rows_are_written_by_the_begin_that_ends_their_request_with_or_without_a_forward(
    script, eager, refused
):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "d")
    s.idle()
    if refused:
        with pytest.raises(BadStepError, match="block aligned"):
            s.begin({"x": hit([5], 3, 1)}, finished=["a"])
    else:
        s.idle(finished=["a"])
    s.settle()
    assert_pool(s, "d", range(4), ("a", 0, 4))
    outputs = s.run({"b": hit([0, 1], 4, 1)}, "d")
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 5), keys=(HIDDEN_KEY, "d"))


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_S53_a_write_that_fails_half_way_fails_as_a_whole(script, failing):
    s = script(eager=False)
    s.run({"z": prefill([5], 1)}, "k", "n")
    s.settle()
    s.idle()
    real, calls = s.cache._pool.write, []

    def write(key, slots, rows):
        calls.append(key)
        if len(calls) == failing:
            raise OSError("planted")
        real(key, slots, rows)

    s.cache._pool.write = write
    step = s.step({"a": prefill([0], 4), "b": prefill([1], 4)}, "k", "n")
    for task in list(s.cache._controller._tasks.values()):
        with pytest.raises(WriteFailedError, match=f"request '{task.req_id}'"):
            s.cache._controller.join([task.tid])
    with pytest.raises(WriteFailedError):
        s.begin({"c": hit([0, 2], 4, 1)})
    for key in (HIDDEN_KEY, "k", "n"):
        assert not np.any(s.cache._slot_status.get_slot_status(key).status[:8] == COMMITTED)
    assert s.cache.unconsumed_steps() == [step]
    s.cache.discard_step(step)


def test_S54_what_passes_through_belongs_to_the_step_that_was_saved_with_it(script, eager):
    s = script(eager=eager)
    signal = {"name": ["first"], "rows": s.rows_of("s", 0, 2, "s")}
    s.begin({"a": prefill([0], 4)})
    first = s.save(mm={"signal": signal})
    signal["rows"].fill_(-1.0)
    s.begin({"a": more([0, 1], 4)})
    second = s.save(mm={"signal": {"name": ["second"], "rows": s.rows_of("s", 5, 7, "s")}})
    outputs = [Background(lambda step=step: s.cache.materialize(step, ["a"])).result() for step in (second, first)]
    assert [each.mm_outputs["signal"]["a"]["name"] for each in outputs] == [["second"], ["first"]]
    assert torch.equal(outputs[0].mm_outputs["signal"]["a"]["rows"], s.rows_of("s", 5, 7, "s"))
    assert torch.equal(outputs[1].mm_outputs["signal"]["a"]["rows"], s.rows_of("s", 0, 2, "s"))
