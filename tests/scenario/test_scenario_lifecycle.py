"""Sections E, F and G of the scenarios: budgets, requests that come back, epochs and the end."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import PrefixCacheError, ShutdownError, WaitTimeoutError, WriteFailedError
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from tests.scenario.test_scenario_copies import assert_pool
from tests.scenario.test_scenario_visibility import assert_rows
from tests.support import HASTY_S, Background, Gate, Part, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")
ROW_BYTES = 16


def save_and_forget(s, parts, *keys, **options):
    """One step whose outputs nobody wants."""
    s.cache.discard_step(s.step(parts, *keys, **options))


# ---------------------------------------------------------------- E: budgets and progress


def test_S57_one_long_request_cannot_keep_the_budget_and_all_its_rows_are_read(script, eager):
    s = script(DEFERRED, eager=eager, gpu_staging_bytes=3 * ROW_BYTES)
    charges, reserve = [], s.cache._controller.reserve
    s.cache._controller.reserve = lambda nbytes: (reserve(nbytes), charges.append(s.cache._controller._staged_bytes))[0]
    for position in range(8):
        save_and_forget(s, {"a": more([2, 3], position)}, "d")
    assert max(charges) == 3 * ROW_BYTES
    assert s.cache.stats.flushes == 2
    outputs = s.run({"c": hit([2, 3, 4], 8, 1)}, "d")  # six rows are flushed, two are in the open task
    assert_rows(s, outputs, "c", ("a", 0, 8), ("c", 8, 9), keys=(HIDDEN_KEY, "d"))


def test_S57_bytes_are_reserved_before_a_clone_is_made(script, eager):
    s = script(DEFERRED, eager=eager, gpu_staging_bytes=4 * ROW_BYTES)
    charged, real = [], s.cache._copies.clone
    s.cache._copies.clone = lambda live: (charged.append(s.cache._controller._staged_bytes), real(live))[1]
    for number in range(3):
        save_and_forget(s, {f"{number}": prefill([number], 4)}, mm={"d": torch.zeros(4, 4)})
    assert 4 * ROW_BYTES in charged
    assert all(charge >= 4 * ROW_BYTES for charge in charged[::2])
    assert s.cache._controller._staged_bytes == 4 * ROW_BYTES


@pytest.mark.forges("releases a ticket a second time")
def test_S58_a_clone_that_two_requests_share_is_charged_once_and_given_back_with_the_last_of_them(script, eager):
    s = script(DEFERRED, eager=eager)
    save_and_forget(s, {"a": prefill([0], 4), "b": prefill([1], 2)}, "d")
    bytes_now = lambda: s.cache._controller._staged_bytes  # noqa: E731
    tasks = list(s.cache._request_tasks.deferred.values())
    assert bytes_now() == 6 * ROW_BYTES
    s.idle(finished=["a"])
    s.settle()
    assert bytes_now() == 6 * ROW_BYTES
    s.idle(finished=["b"])
    s.settle()
    assert bytes_now() == 0
    for task in tasks:
        s.cache._controller._release_staged_bytes(task)
    assert bytes_now() == 0
    outputs = s.run({"c": hit([0, 2], 4, 1)}, "d")
    assert_rows(s, outputs, "c", ("a", 0, 4), ("c", 4, 5), keys=(HIDDEN_KEY, "d"))


class Killed(BaseException):
    """What ends a thread whatever it is doing."""


@pytest.mark.parametrize("end", [Killed("killed"), SystemExit()], ids=["killed", "exit"])
def test_S61_a_save_that_joins_a_write_whose_thread_has_died_raises_and_the_cache_takes_no_more(script, end):
    s = script(eager=False)

    def die(*_):
        raise end

    s.cache._pool.write = die
    s.begin({"a": prefill([0], 4), "b": prefill([1], 4)})
    first = s.save("k")
    s.cache._controller._committer.join(20)
    assert not s.cache._controller._committer.is_alive()
    for _ in range(2):
        with pytest.raises(WriteFailedError, match="request 'a', state=FAILED") as error:
            s.begin({"a": more([0, 2], 4)})
        assert error.value.__cause__ is end
    assert torch.equal(s.pool("k", range(8)), torch.zeros(8, 4))
    s.cache.discard_step(first)


def test_S61_a_save_that_joins_a_write_which_hangs_raises_with_the_task_and_its_state(script):
    s = script(eager=False, staging_claim_timeout_s=HASTY_S)
    with held_at(s.cache._pool, "write") as write:
        first = s.step({"a": prefill([0], 4)})
        write.wait_until_reached()
        s.begin({"a": more([0, 1], 4)})
        with pytest.raises(WaitTimeoutError, match=r"task 1 .*did not reach done.*state=HOST_READY, request 'a'"):
            s.save()
        assert s.cache.unconsumed_steps() == [first]
    s.settle()
    outputs = s.cache.materialize(s.save(), ["a"])  # the same step, once the write has ended after all
    assert_rows(s, outputs, "a", ("a", 4, 5), keys=(HIDDEN_KEY,))
    s.cache.discard_step(first)


# ---------------------------------------------------------------- F: requests that come back


def test_S62_a_request_resumed_with_a_longer_hit_than_it_delivered_gets_every_row_in_order(script, eager):
    s = script(DEFERRED, eager=eager)
    delivered = {key: [] for key in KEYS}

    def deliver(outputs, name, first):
        for key in KEYS:
            rows = (outputs.hidden_states if key == HIDDEN_KEY else outputs.mm_outputs[key])[name]
            delivered[key].append(rows[sum(part.shape[0] for part in delivered[key]) - first :])
        assert not outputs.absent

    deliver(s.run({"v": prefill([0, 1], 8)}, "k", "d"), "v", 0)
    s.begin({"h": hit([0, 1, 2, 3], 8, 8)}, preempted=["v"])
    s.cache.discard_step(s.save("k", "d"))
    deliver(s.run({"v": hit([0, 1, 2, 3, 4], 16, 2)}, "k", "d", finished=["h"]), "v", 0)
    deliver(s.run({"v": more([0, 1, 2, 3, 4], 18, 2)}, "k", "d"), "v", 18)
    for key in KEYS:
        spans = [s.rows_of("v", 0, 8, key), s.rows_of("h", 8, 16, key), s.rows_of("v", 16, 20, key, 1)]
        assert torch.equal(torch.cat(delivered[key]), torch.cat(spans))


@pytest.mark.parametrize("key", ["d", "k"])
def test_S64_a_slot_that_a_request_takes_back_holds_its_fresh_row(script, eager, key):
    s = script(DEFERRED, eager=eager)
    save_and_forget(s, {"a": prefill([2], 1)}, key)
    save_and_forget(s, {"b": prefill([2], 1)}, key)
    s.generation["b"] = 1
    s.idle(finished=["b"])
    s.generation["a"] = 5  # another tag for the same life of a
    save_and_forget(s, {"a": Part([2], 0, 4, new=False)}, key)
    s.settle()
    s.idle(finished=["a"])
    s.settle()
    assert_pool(s, key, range(8, 12), ("a", 0, 4, 5))
    outputs = s.run({"c": hit([2, 3], 4, 1)}, key)
    assert_rows(s, outputs, "c", ("a", 0, 4, 5), ("c", 4, 5), keys=(HIDDEN_KEY, key))


@pytest.mark.parametrize("first", ["the newer tenant", "the older tenant", "both at once"])
def test_S65_deferred_rows_of_an_older_tenant_never_land_on_the_newer_tenants(script, eager, first):
    s = script(DEFERRED, eager=eager)
    save_and_forget(s, {"a": prefill([0, 1], 8)}, "d")
    save_and_forget(s, {"b": prefill([0], 4)}, "d")
    ends = {"the newer tenant": ["b", "a"], "the older tenant": ["a", "b"]}.get(first)
    for ended in [[name] for name in ends] if ends else [["a", "b"]]:
        s.idle(finished=ended)
        s.settle()
    s.idle()
    assert_pool(s, "d", range(8), ("b", 0, 4), ("a", 4, 8))
    outputs = s.run({"c": hit([0, 1, 2], 8, 1)}, "d")
    assert_rows(s, outputs, "c", ("b", 0, 4), ("a", 4, 8), ("c", 8, 9), keys=(HIDDEN_KEY, "d"))


@pytest.mark.parametrize("delivered", [6, 8])
def test_S66_a_live_request_that_is_scheduled_as_new_again_is_no_hit_and_repeats_nothing(script, eager, delivered):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0, 1, 2], delivered)}, "k", "d")
    outputs = s.run({"a": hit([0, 1, 2], delivered, 12 - delivered)}, "k", "d")
    assert_rows(s, outputs, "a", ("a", delivered, 12))
    assert s.cache.stats.hits == 0
    outputs = s.run({"a": hit([0, 1, 2, 3], 12, 1)}, "k", "d", finished=["a"])  # the same id, another request
    assert_rows(s, outputs, "a", ("a", 0, 12, 0), ("a", 12, 13, 1))
    assert s.cache.stats.hits == 1


# ---------------------------------------------------------------- G: epochs and the end


@pytest.mark.parametrize("held", ["begin_pool_write", "complete"])
def test_S75_a_write_in_flight_over_a_reset_never_becomes_visible(script, held):
    s = script(DEFERRED, eager=False)
    s.run({"a": prefill([0], 4)}, "k", "d")
    s.settle()
    with held_at(s.cache._controller, held) as writing:
        step = s.step({"b": prefill([1], 4)}, "k", "d")
        writing.wait_until_reached()
        s.cache.reset()
        writing.open()
    s.settle()
    s.cache.discard_step(step)
    s.idle(finished=["a", "b"])
    s.settle()
    s.idle()
    assert not s.cache._controller._tasks
    if held == "begin_pool_write":
        assert torch.equal(s.pool("k", range(4, 8)), torch.zeros(4, 4))
    for key in KEYS:
        assert not s.cache._slot_status.get_slot_status(key).status.any()
    s.run({"e": prefill([2], 4)}, "k", "d")
    for name, block in (("x", 0), ("y", 1)):
        step = s.step({name: hit([block, 5 + block], 4, 1)}, "k", "d", finished=["e"])
        with pytest.raises(PrefixCacheError, match=r"4 of 4 hidden-state rows .* are absent"):
            s.cache.materialize(step, [name])
    outputs = s.run({"z": hit([2, 7], 4, 1)}, "k", "d", finished=["x", "y"])
    assert_rows(s, outputs, "z", ("e", 0, 4), ("z", 4, 5))


def test_S75_deferred_rows_of_an_open_task_belong_to_the_epoch_they_were_saved_in(script, eager):
    s = script(DEFERRED, eager=eager)
    save_and_forget(s, {"a": prefill([0, 1], 4)}, "k", "d")
    s.cache.reset()
    s.generation["a"] = 1
    save_and_forget(s, {"a": more([0, 1], 4, 4)}, "k", "d")
    step = s.step({"b": hit([0, 1, 2], 8, 1)}, "k", "d", finished=["a"])
    with pytest.raises(PrefixCacheError, match=r"4 of 8 .*slots \[0, 1, 2, 3\]"):
        s.cache.materialize(step, ["b"])
    outputs = s.run({"c": hit([1, 3], 4, 1)}, "k", "d", finished=["b"])  # all keys of the new epoch are there
    assert_rows(s, outputs, "c", ("a", 4, 8, 1), ("c", 4, 5))


def test_S76_shutdown_waits_for_the_write_that_is_landing_before_it_releases_anything(script):
    s = script(eager=False)
    with held_at(s.cache._pool, "write") as write:
        step = s.step({"a": prefill([0], 4)})
        write.wait_until_reached()
        closed = Gate()
        close, s.cache._controller.staging.close = s.cache._controller.staging.close, closed.reached.set
        end = Background(s.cache.shutdown)
        closed.wait_until_reached()  # intake is stopped, and shutdown is on its way to join the committer
        close()
        assert end.running
        assert s.cache.unconsumed_steps() == [step]
        assert len(s.cache._controller.staging.holders_of(0)) == 2
        write.open()
        end.result()
    assert_pool(s, HIDDEN_KEY, range(4), ("a", 0, 4))
    assert s.cache._controller.staging.holders_of(0) == []
    assert not s.cache._controller._committer.is_alive()


def test_S78_shutdown_with_work_at_every_stage_wakes_the_waiter_and_ends(script):
    s = script(DEFERRED, eager=False, staging_depth=1)
    step = s.step({"a": prefill([0], 4)}, "d")  # its deferred task is pending, and nobody consumes it
    s.settle()
    s.begin({"a": more([0, 1], 4)})
    with held_at(s.cache._controller.staging, "claim_page_begin", after=True) as claim:
        save = Background(lambda: s.save("d"))
        claim.wait_until_reached()
        end = Background(s.cache.shutdown)
        claim.open()
        with pytest.raises(ShutdownError):
            save.result()
        end.result()
    s.cache.shutdown()
    for late in (lambda: s.cache.materialize(step, ["a"]), lambda: s.cache.discard_step(step), s.idle, s.cache.reset):
        with pytest.raises(ShutdownError):
            late()
    assert s.cache._controller._staged_bytes == 0
    assert not any(s.cache._controller.staging._busy)
    assert not s.cache._controller.unfinished()
