"""Section B of the scenarios, on the host: rows that are copied while their slots change hands.

What needs a device's streams is in `test_scenario_device.py`.
"""

# Scenario numbers stand in the names as the catalogue writes them.

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import StaleReadError
from palimpsest.lifecycle import TaskState
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.slots import COMMITTED, IN_TRANSIT
from tests.scenario.test_scenario_visibility import assert_rows
from tests.support import Background, Gate, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")


def join_all(s):
    """Wait until every task that is not open is in the pool."""
    tasks = list(s.cache._controller._tasks.values())
    s.cache._controller.join(task.tid for task in tasks if task.state is not TaskState.PENDING)


def assert_pool(s, key, slots, *spans):
    """What lies in the pool is these (writer, start, stop[, generation]) spans, end to end."""
    want = torch.cat([s.rows_of(who, a, b, key, *generation) for who, a, b, *generation in spans])
    assert torch.equal(s.pool(key, slots), want), key


def tear_reads(s, monkeypatch):
    """Make each read of pool rows stop between its first row and the others, until the gate opens."""
    gate, real = Gate(), s.cache._pool.read_into

    def torn(key, slots, out):
        real(key, slots[:1], out[:1])
        gate.wait_here()
        real(key, slots[1:], out[1:])

    monkeypatch.setattr(s.cache._pool, "read_into", torn)
    return gate


@pytest.mark.parametrize("key", KEYS)
def test_S19_a_write_that_lands_in_the_middle_of_a_read_leaves_no_torn_rows(script, eager, monkeypatch, key):
    s = script(DEFERRED, eager=eager)
    keys = [] if key == HIDDEN_KEY else [key]
    s.run({"a": prefill([0], 4)}, *keys)
    s.idle(finished=["a"])
    s.settle()
    s.idle()
    with monkeypatch.context() as slow:
        reading = tear_reads(s, slow)
        s.begin({"c": hit([0, 1], 4, 1)})
        reading.wait_until_reached()
        step = s.save(*keys)
        slow.undo()  # preserving reads whole rows; the prefetch thread stays in the torn read
        other = s.step({"b": prefill([0], 4)}, *keys, finished=["c"])
        s.idle(finished=["b"])
        join_all(s)
        assert_pool(s, key, range(4), ("b", 0, 4))
        reading.open()
        outputs = s.cache.materialize(step, ["c"])
    assert_rows(s, outputs, "c", ("a", 0, 4), ("c", 4, 5), keys=(HIDDEN_KEY, *keys))
    s.cache.discard_step(other)


def test_S20_a_queued_write_of_a_preempted_request_leaves_the_block_to_its_new_tenant(script):
    s = script(DEFERRED, eager=False)
    s.run({"a": prefill([2, 3], 8)}, "d")
    s.settle()
    with held_at(s.cache._controller, "begin_pool_write") as write:
        s.begin({"b": prefill([2], 4)}, preempted=["a"])
        write.wait_until_reached()  # a's rows of both blocks are on their way
        step = s.save(mm={"d": s._rows("d")})
        write.open()
    s.settle()
    assert_pool(s, HIDDEN_KEY, range(8, 16), ("b", 0, 4), ("a", 4, 8))
    s.begin({"c": hit([2, 3, 4], 8, 1)}, finished=["b"])
    outputs = s.cache.materialize(s.save("d"), ["c"])
    assert_rows(s, outputs, "c", ("b", 0, 4), ("a", 4, 8), ("c", 8, 9), keys=(HIDDEN_KEY, "d"))
    assert_pool(s, "d", range(12, 16), ("a", 4, 8))
    s.cache.discard_step(step)


def test_S20_a_save_waits_for_the_write_of_the_step_before_whose_block_it_takes(script):
    s = script(eager=False)
    with held_at(s.cache._pool, "write") as write:
        first = s.step({"a": prefill([2, 3], 8)}, "k")
        write.wait_until_reached()
        s.begin({"b": prefill([2], 4)}, preempted=["a"])
        with held_at(s.cache._controller, "join_begin", after=True) as join:
            save = Background(lambda: s.save("k"))
            join.wait_until_reached()
            assert s.cache.unconsumed_steps() == [first]
        write.open()
        second = save.result()
    s.settle()
    for key in (HIDDEN_KEY, "k"):
        assert_pool(s, key, range(8, 16), ("b", 0, 4), ("a", 4, 8))
    assert_rows(s, s.cache.materialize(first, ["a"]), "a", ("a", 0, 8), keys=(HIDDEN_KEY, "k"))
    assert_rows(s, s.cache.materialize(second, ["b"]), "b", ("b", 0, 4), keys=(HIDDEN_KEY, "k"))


@pytest.mark.parametrize("writes", [("d",), ("k",), ()])
@pytest.mark.parametrize("first", [0, 4])
def test_S21_a_slot_that_is_reused_without_any_notice_is_lost_to_the_pending_write(script, eager, writes, first):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([3, 4], 8), "b": prefill([6], first)}, "k", "d")
    blocks = [6, 3] if first else [3]
    part = more(blocks, first, 4) if first else prefill(blocks, 4)
    s.run({"b": part}, *writes)  # nobody said that a had let go of block 3
    outputs = s.run({"c": hit([3, 4, 5], 8, 1)}, "k", "d", finished=["a", "b"])
    assert_rows(s, outputs, "c", ("b", first, first + 4), ("a", 4, 8), ("c", 8, 9), keys=(HIDDEN_KEY, *writes))
    for key in {"k", "d"} - set(writes):
        want = torch.cat([torch.zeros(4, 4), s.rows_of("a", 4, 8, key), s.rows_of("c", 8, 9, key)])
        assert torch.equal(outputs.mm_outputs[key]["c"], want)
        assert outputs.absent[key]["c"].tolist() == [True] * 4 + [False] * 4


def test_S23_a_slot_that_changes_hands_during_the_write_into_it_ends_with_its_new_tenants_rows(script):
    s = script(DEFERRED, eager=False)
    s.run({"a": prefill([0], 4)}, "d")
    s.settle()
    table = s.cache._slot_status
    with held_at(s.cache._pool, "write") as write:
        s.idle(finished=["a"])
        write.wait_until_reached()  # a's deferred rows are being written, which nothing stops any more
        step = s.step({"b": prefill([0], 4)}, "d")
        with held_at(s.cache._controller, "host_ready") as next_write:
            write.open()
            next_write.wait_until_reached()  # a's write is over, and b's rows are not there yet
            assert_pool(s, "d", range(4), ("a", 0, 4))
            reads = Background(lambda: s.begin({"c": hit([0, 1], 4, 1)}, finished=["b"]))
            reads.result()
            assert table.get_slot_status("d").status[:4].tolist() == [IN_TRANSIT] * 4
    outputs = s.cache.materialize(s.save("d"), ["c"])
    assert_rows(s, outputs, "c", ("b", 0, 4), ("c", 4, 5), keys=(HIDDEN_KEY, "d"))
    s.settle()
    s.idle()
    assert_pool(s, "d", range(4), ("b", 0, 4))
    assert table.get_slot_status("d").status[:4].tolist() == [COMMITTED] * 4
    s.cache.discard_step(step)


def test_S24_a_read_of_rows_of_two_tasks_keeps_them_when_both_are_closed_and_half_its_blocks_are_reused(script, eager):
    s = script(DEFERRED, eager=eager, gpu_staging_bytes=6 * 16)
    s.run({"a": prefill([0], 4)}, "d")
    s.run({"a": more([0, 1], 4, 2)}, "d")
    s.run({"a": more([0, 1], 6, 2)}, "d")  # does not fit: the first task is closed, and another one opened
    assert s.cache.stats.flushes == 1
    with held_at(s.cache._hits, "fetch") as fetch:
        step = s.step({"c": hit([0, 1, 2], 8, 1)}, "d")
        s.run({"b": prefill([0], 4)}, "d", finished=["a", "c"])
        fetch.open()
        outputs = s.cache.materialize(step, ["c"])
    assert_rows(s, outputs, "c", ("a", 0, 8), ("c", 8, 9), keys=(HIDDEN_KEY, "d"))
    s.idle(finished=["b"])
    s.settle()
    assert_pool(s, "d", range(8), ("b", 0, 4), ("a", 4, 8))
    assert s.cache._controller._staged_bytes == 0


@pytest.mark.parametrize("path", ["prefetch thread", "builder"])
def test_S26_every_path_of_a_fetch_checks_the_versions_after_the_copy(script, eager, path):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)}, "k")
    s.settle()
    s.idle(finished=["a"])
    busy = Gate()
    if path == "builder":
        s.cache._prefetch_pool.submit(busy.wait_here)
    with held_at(s.cache._hits, "_gather", after=True) as gathered:
        step = s.step({"b": hit([0, 1], 4, 1)}, "k")
        outputs = Background(lambda: s.cache.materialize(step, ["b"]))
        gathered.wait_until_reached()
        s.cache.reset()  # every version grows, and nothing is preserved
        gathered.open()
        with pytest.raises(StaleReadError, match=r"4 rows of key .* were reassigned"):
            outputs.result()
    busy.open()


@pytest.mark.parametrize("path", ["prefetch thread", "builder"])
def test_S26_every_path_of_a_fetch_gives_the_rows_as_planned_when_they_change_during_the_copy(script, eager, path):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    s.idle(finished=["a"])
    s.settle()
    busy = Gate()
    if path == "builder":
        s.cache._prefetch_pool.submit(busy.wait_here)
    with held_at(s.cache._hits, "_gather") as gather:
        step = s.step({"c": hit([0, 1], 4, 1)}, "k", "d")
        outputs = Background(lambda: s.cache.materialize(step, ["c"]))
        gather.wait_until_reached()
        s.run({"b": prefill([0], 4)}, "k", "d", finished=["c"])
        s.idle(finished=["b"])
        join_all(s)
        gather.open()
        assert_rows(s, outputs.result(), "c", ("a", 0, 4), ("c", 4, 5))
    busy.open()
