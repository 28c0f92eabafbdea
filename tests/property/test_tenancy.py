"""Once a slot has a new tenant, nothing of an earlier one can be had through it."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import AbsentRowsError
from palimpsest.prefix_cache.interface import ModelCachePolicy
from tests.support import held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


@pytest.mark.parametrize("key", ["k", "d"])
def test_a_new_tenant_hides_the_rows_of_every_key_also_of_keys_it_never_writes(script, eager, key):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, key)
    s.run({"b": prefill([0], 4)}, finished=["a"])
    outputs = s.run({"c": hit([0, 1], 4, 2)}, key, finished=["b"])
    assert torch.equal(outputs.hidden_states["c"][:4], s.rows_of("b", 0, 4))
    assert torch.equal(outputs.mm_outputs[key]["c"][:4], torch.zeros(4, 4))
    assert outputs.absent[key]["c"].tolist() == [True] * 4


def test_rows_that_are_there_are_not_reported_absent(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)}, "k")
    s.run({"z": prefill([3], 4)}, finished=["a"])
    outputs = s.run({"c": hit([0, 3, 1], 8, 2)}, "k", finished=["z"])
    assert outputs.absent["k"]["c"].tolist() == [False] * 4 + [True] * 4
    assert torch.equal(outputs.mm_outputs["k"]["c"][:4], s.rows_of("a", 0, 4, "k"))


def test_absent_hidden_states_are_an_error_that_names_the_slots_and_the_next_step_works(script, eager):
    s = script(eager=eager)
    step = s.step({"c": hit([5, 6], 4, 2)})
    with pytest.raises(AbsentRowsError, match=r"4 of 4 hidden-state rows .*slots \[20, 21, 22, 23\]"):
        s.cache.materialize(step, ["c"])
    outputs = s.run({"d": prefill([5], 4)}, finished=["c"])
    assert torch.equal(outputs.hidden_states["d"], s.rows_of("d", 0, 4))


def test_a_hole_that_was_absent_when_planned_stays_absent_when_its_slot_is_reused_before_the_read(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)})
    s.run({"z": prefill([9], 4)}, "k")
    with held_at(s.cache._hits, "fetch") as gate:
        step = s.step({"c": hit([0, 1], 4, 2)}, "k", finished=["a"])
        s.run({"d": prefill([0], 4)}, "k", finished=["c"])
        gate.open()
        outputs = s.cache.materialize(step, ["c"])
    assert torch.equal(outputs.mm_outputs["k"]["c"][:4], torch.zeros(4, 4))
    assert outputs.absent["k"]["c"].tolist() == [True] * 4
    assert torch.equal(outputs.hidden_states["c"][:4], s.rows_of("a", 0, 4))


def test_a_delayed_read_of_a_deferred_key_gives_the_rows_as_planned_not_later_ones_of_the_same_task(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "d")
    with held_at(s.cache._hits, "fetch") as gate:
        step = s.step({"a": more([0, 2], 4), "b": hit([0, 1], 4, 2)}, "d")
        s.generation["a"] = 7  # the same task writes its first rows again, with another tag
        s.run({"a": more([0], 0, 4)}, "d")
        gate.open()
        outputs = s.cache.materialize(step, ["b"])
    assert torch.equal(outputs.mm_outputs["d"]["b"][:4], s.rows_of("a", 0, 4, "d"))


def test_a_hit_on_rows_that_the_same_step_computes_reads_that_step_and_not_an_earlier_tenant(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"z": prefill([0, 1], 8)}, "k", "d")
    s.idle(finished=["z"])
    outputs = s.run({"a": prefill([0, 1], 8), "b": hit([0, 1, 2], 8, 4)}, "k", "d")
    assert torch.equal(outputs.hidden_states["b"][:8], s.rows_of("a", 0, 8))
    for key in ("k", "d"):
        assert torch.equal(
            outputs.mm_outputs[key]["b"], torch.cat([s.rows_of("a", 0, 8, key), s.rows_of("b", 8, 12, key)])
        )
    assert s.cache.stats.hits_replanned == 1


def test_a_same_step_hit_on_a_key_that_the_step_does_not_write_finds_it_absent(script, eager):
    s = script(eager=eager)
    s.run({"z": prefill([0], 4)}, "k")
    s.idle(finished=["z"])
    step = s.step({"a": prefill([0], 4), "b": hit([0, 1], 4, 2)})
    s.run({"c": hit([0, 2], 4, 2)}, "k", finished=["a"])
    outputs = s.cache.materialize(step, ["b"])
    assert torch.equal(outputs.hidden_states["b"][:4], s.rows_of("a", 0, 4))


def test_a_resumed_request_that_gets_its_block_back_for_other_positions_leaves_no_rows_of_its_first_life(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([2, 3], 8)}, "k")
    s.begin({"z": prefill([9], 1)}, preempted=["a"])
    s.cache.materialize(s.save("k"), ["z"])
    s.run({"a": prefill([3, 2], 8)})  # resumed on the same blocks the other way round, without the key
    outputs = s.run({"c": hit([3, 2, 4], 8, 1)}, "k", finished=["a"])
    assert torch.equal(outputs.hidden_states["c"][:8], s.rows_of("a", 0, 8, generation=1))
    assert outputs.absent["k"]["c"].all()


def test_a_reused_request_id_is_another_tenant(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([2], 4)}, "k")
    s.run({"a": prefill([2], 4)}, finished=["a"])
    outputs = s.run({"c": hit([2, 4], 4, 1)}, "k", finished=["a"])
    assert torch.equal(outputs.hidden_states["c"][:4], s.rows_of("a", 0, 4, generation=1))
    assert outputs.absent["k"]["c"].all()
