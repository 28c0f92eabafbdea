"""Section A of the scenarios: what a hit may see, and when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from palimpsest.errors import AbsentRowsError, BadStepError, BudgetExceededError, ConfigRefusedError, HostMemoryError
from palimpsest.prefix_cache import sizing
from palimpsest.prefix_cache.group_view import FullAttentionGroupView
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from tests.support import Background, Gate, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))
KEYS = (HIDDEN_KEY, "k", "d")


def of(outputs, key):
    """What a step delivered of a key, by request."""
    return outputs.hidden_states if key == HIDDEN_KEY else outputs.mm_outputs[key]


def assert_rows(s, outputs, request, *spans, keys=KEYS):
    """Each key's rows of a request are these (writer, start, stop[, generation]) spans, end to end."""
    for key in keys:
        want = torch.cat([s.rows_of(who, a, b, key, *generation) for who, a, b, *generation in spans])
        assert torch.equal(of(outputs, key)[request], want), key
        assert request not in outputs.absent.get(key, {}), key


@pytest.mark.parametrize("prefetch", ["before the save", "after the save"])
def test_S01_a_hit_on_rows_of_the_same_step_reads_that_step_whenever_it_was_prefetched(script, eager, prefetch):
    s = script(DEFERRED, eager=eager)
    s.run({"z": prefill([0], 4)}, "k", "d")
    s.idle(finished=["z"])
    gate = Gate()
    if prefetch == "after the save":
        s.cache._prefetch_pool.submit(gate.wait_here)
    s.begin({"a": prefill([0, 1], 8), "b": hit([0, 1, 2], 8, 4), "c": hit([0, 3], 4, 1)})
    if prefetch == "before the save":
        s.settle()
    step = s.save("k", "d")
    gate.open()
    outputs = s.cache.materialize(step, ["a", "b", "c"])
    assert_rows(s, outputs, "a", ("a", 0, 8))
    assert_rows(s, outputs, "b", ("a", 0, 8), ("b", 8, 12))
    assert_rows(s, outputs, "c", ("a", 0, 4), ("c", 4, 5))


def test_S01_on_a_cold_cache_a_hit_of_the_same_step_reads_keys_that_the_step_shows_first(script, eager):
    s = script(DEFERRED, eager=eager)
    outputs = s.run({"a": prefill([0, 1], 8), "b": hit([0, 1, 2], 8, 4)}, "k", "d")
    assert_rows(s, outputs, "b", ("a", 0, 8), ("b", 8, 12))


def test_S01_a_step_whose_save_has_not_asked_for_its_hits_yet_is_refused_and_can_be_consumed_later(script, eager):
    s = script(DEFERRED, eager=eager)
    s.begin({"a": prefill([0, 1], 8), "b": hit([0, 1, 2], 8, 4)})
    with held_at(s.cache, "_prefetch") as gate:
        saving = Background(lambda: s.save("k", "d"))
        gate.wait_until_reached()
        (step,) = s.cache.unconsumed_steps()
        with pytest.raises(BadStepError, match=f"step {step} is still being saved: request 'b' has a hit"):
            s.cache.materialize(step, ["a", "b"])
        gate.open()
        assert saving.result() == step
    outputs = s.cache.materialize(step, ["a", "b"])
    assert_rows(s, outputs, "b", ("a", 0, 8), ("b", 8, 12))


def test_S01_a_key_that_the_step_does_not_write_is_reported_absent_and_not_read_of_the_earlier_tenant(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"z": prefill([0], 4)}, "k", "d")
    s.run({"y": prefill([3], 4)}, "k", "d", finished=["z"])
    s.begin({"a": prefill([0], 4), "b": hit([0, 3, 1], 8, 1)})
    outputs = s.cache.materialize(s.save(mm={"k": s._rows("k")}), ["b"])
    assert torch.equal(outputs.mm_outputs["k"]["b"][:4], s.rows_of("a", 0, 4, "k"))
    assert "d" not in outputs.mm_outputs
    later = s.run({"c": hit([0, 3, 2], 8, 1)}, "k", "d", finished=["a", "b"])
    assert torch.equal(later.mm_outputs["d"]["c"][:4], torch.zeros(4, 4))
    assert later.absent["d"]["c"].tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize("where", ["fetch", "_gather", "end_fetch"])
def test_S02_a_read_delayed_past_the_reuse_of_its_block_gets_the_rows_it_was_planned_on(script, eager, where):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    s.idle(finished=["a"])
    s.settle()
    with held_at(s.cache._hits, where) as gate:
        step = s.step({"c": hit([0, 1], 4, 2)}, "k", "d")
        gate.wait_until_reached()
        other = s.step({"b": prefill([0], 4)}, "k", "d", finished=["c"])
        s.cache._controller.join(s.cache._join_next_step_tids)
        s.idle(finished=["b"])
        s.cache._controller.join(list(s.cache._controller._tasks))
        for key in KEYS:
            assert torch.equal(s.pool(key, range(4)), s.rows_of("b", 0, 4, key))
        gate.open()
        outputs = s.cache.materialize(step, ["c"])
    assert_rows(s, outputs, "c", ("a", 0, 4), ("c", 4, 6))
    assert s.cache.stats.rows_preserved == 4 * len(KEYS)
    assert_rows(s, s.cache.materialize(other, ["b"]), "b", ("b", 0, 4))


def test_S02_a_read_of_rows_that_are_still_being_written_keeps_them_when_their_block_is_given_away(script, eager):
    s = script(DEFERRED, eager=eager)
    with held_at(s.cache._hits, "fetch") as fetch, held_at(s.cache._pool, "write") as write:
        if eager:
            write.open()
        step = s.step({"a": prefill([0], 4), "c": hit([0, 1], 4, 2)}, "k", "d")
        write.wait_until_reached()
        s.begin({"b": prefill([0, 1], 6)}, finished=["a", "c"])
        write.open()
        other = s.save("k", "d")
        s.cache._controller.join(s.cache._join_next_step_tids)
        fetch.open()
        outputs = s.cache.materialize(step, ["a", "c"])
    assert_rows(s, outputs, "c", ("a", 0, 4), ("c", 4, 6))
    assert_rows(s, s.cache.materialize(other, ["b"]), "b", ("b", 0, 6))


def test_S03_a_hit_on_blocks_whose_forward_never_ran_raises(script, eager):
    s = script(eager=eager)
    s.begin({"a": prefill([0, 1], 8)})
    step = s.step({"b": hit([0, 1, 2], 8, 4)}, finished=["a"])
    with pytest.raises(AbsentRowsError, match="8 of 8"):
        s.cache.materialize(step, ["b"])


def test_S03_a_hit_on_blocks_whose_forward_never_ran_does_not_read_an_earlier_tenant(script, eager):
    s = script(eager=eager)
    s.run({"z": prefill([0, 1], 8)})
    s.begin({"a": prefill([0, 1], 8)}, finished=["z"])
    step = s.step({"b": hit([0, 1, 2], 8, 4)}, finished=["a"])
    with pytest.raises(AbsentRowsError, match="8 of 8"):
        s.cache.materialize(step, ["b"])


def test_S03_a_copy_that_was_never_written_is_not_made_readable_by_the_other_copy_of_the_same_content(script, eager):
    s = script(eager=eager)
    s.begin({"a": prefill([0, 1], 8), "e": prefill([3, 4], 8)})
    s.run({"a": prefill([0, 1], 8)}, finished=["e"])  # e is aborted, the step is begun again without it
    outputs = s.run({"b": hit([0, 2], 4, 1)}, finished=["a"])
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 5), keys=(HIDDEN_KEY,))
    step = s.step({"c": hit([3, 5], 4, 1)})
    with pytest.raises(AbsentRowsError, match=r"slots \[12, 13, 14, 15\]"):
        s.cache.materialize(step, ["c"])


@pytest.mark.parametrize("notice", ["with the hit", "before the hit"])
def test_S04_deferred_rows_of_an_aborted_request_are_written_and_served(script, eager, notice):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    if notice == "before the hit":
        s.idle(finished=["a"])
        s.settle()
        assert torch.equal(s.pool("d", range(4)), s.rows_of("a", 0, 4, "d"))
    outputs = s.run({"b": hit([0, 1], 4, 4)}, "k", "d", finished=["a"] if notice == "with the hit" else [])
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 8))


def test_S05_a_hit_past_the_last_row_that_a_forward_wrote_raises(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0, 1], 7)})
    step = s.step({"b": hit([0, 1, 2], 8, 1)}, finished=["a"])
    with pytest.raises(AbsentRowsError, match=r"1 of 8 .*slots \[7\]"):
        s.cache.materialize(step, ["b"])


@pytest.mark.parametrize("chunks", [[7], [4, 3], [6, 1]])
def test_S05_the_row_past_the_last_one_written_is_not_read_of_the_blocks_earlier_tenant(script, eager, chunks):
    s = script(eager=eager)
    s.run({"z": prefill([0, 1], 8)})
    s.run({"a": prefill([0, 1][: -(-chunks[0] // 4)], chunks[0])}, finished=["z"])
    for chunk in chunks[1:]:
        s.run({"a": more([0, 1], chunks[0], chunk)})
    step = s.step({"b": hit([0, 1, 2], 8, 1)}, finished=["a"])
    with pytest.raises(AbsentRowsError, match=r"1 of 8 .*slots \[7\]"):
        s.cache.materialize(step, ["b"])


@pytest.mark.parametrize("end", ["running", "aborted"])
def test_S06_a_hit_waits_for_the_write_that_a_later_begin_does_not_end(script, end):
    s = script(DEFERRED, eager=False)
    s.run({"z": prefill([0], 4)}, "k", "d")
    s.idle(finished=["z"])
    s.settle()
    with held_at(s.cache._pool, "write") as write:
        first = s.step({"a": prefill([0], 4)}, "k", "d")
        write.wait_until_reached()
        with held_at(s.cache._controller, "join_begin", after=True) as read:
            s.begin({"b": hit([0, 1], 4, 1)}, finished=["a"] if end == "aborted" else [])
            read.wait_until_reached()  # the prefetch thread waits for a's task, whose rows are not in the pool:
            assert torch.equal(s.pool("k", range(4)), s.rows_of("z", 0, 4, "k"))
        write.open()
        outputs = s.cache.materialize(s.save("k", "d"), ["b"])
    assert_rows(s, outputs, "b", ("a", 0, 4), ("b", 4, 5))
    s.cache.discard_step(first)


@pytest.mark.parametrize("key", ["k", "d"])
@pytest.mark.parametrize("seen", ["before", "in this step"])
def test_S09_a_key_that_the_prefix_never_had_is_reported_missing_row_by_row(script, eager, key, seen):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0, 1], 8)})
    if seen == "before":
        s.run({"z": prefill([5], 4)}, key)
    outputs = s.run({"b": hit([0, 1, 2], 8, 2)}, key, finished=["a"])
    assert torch.equal(outputs.hidden_states["b"], torch.cat([s.rows_of("a", 0, 8), s.rows_of("b", 8, 10)]))
    rows = outputs.mm_outputs[key]["b"]
    assert torch.equal(rows, torch.cat([torch.zeros(8, 4), s.rows_of("b", 8, 10, key)]))
    assert outputs.absent[key]["b"].tolist() == [True] * 8


def test_S10_a_deferred_key_too_large_for_its_budget_is_refused_and_never_delivered_short(script, eager):
    s = script(DEFERRED, eager=eager, gpu_staging_bytes=8 * 16)
    s.run({"a": prefill([0, 1], 8)}, "k", "d")
    s.begin({"b": hit([0, 1, 2, 3, 4], 8, 9)}, finished=["a"])
    with pytest.raises(BudgetExceededError, match="144 bytes"):
        s.save("k", "d")
    outputs = s.run({"b": hit([0, 1, 2], 8, 4)}, "k", "d")
    assert_rows(s, outputs, "b", ("a", 0, 8), ("b", 8, 12))


def test_S10_a_key_that_the_host_has_no_memory_for_is_refused_and_not_left_out(script, eager, monkeypatch):
    s = script(eager=eager)
    s.run({"a": prefill([0, 1], 8)})
    s.begin({"b": hit([0, 1, 2], 8, 4)})
    with monkeypatch.context() as small:
        small.setattr(sizing, "available_host_bytes", lambda: 1000)
        with pytest.raises(HostMemoryError, match="new keys \\['k'\\]"):
            s.save("k")
    outputs = s.cache.materialize(s.save("k"), ["b"])
    assert torch.equal(outputs.mm_outputs["k"]["b"][8:], s.rows_of("b", 8, 12, "k"))
    assert outputs.absent["k"]["b"].all()
    assert outputs.mm_outputs["k"]["b"].shape[0] == 12


@pytest.mark.parametrize("tokens", [1, 3, 6, 201])
def test_S11_a_hit_that_is_not_block_aligned_is_refused_and_not_cut(script, tokens):
    s = script(num_blocks=64)
    with pytest.raises(BadStepError, match=f"not block aligned.*{tokens} tokens"):
        s.begin({"b": hit(list(range(52)), tokens, 1)})


@pytest.mark.parametrize("new", [1, 4, 7])
def test_S11_a_long_hit_delivers_its_exact_interval_and_the_new_rows_behind_it(script, eager, new):
    s = script(DEFERRED, eager=eager, num_blocks=64)
    s.run({"a": prefill(list(range(51)), 203)}, "k", "d")
    outputs = s.run({"b": hit([*range(50), 60, 61], 200, new)}, "k", "d")
    assert_rows(s, outputs, "b", ("a", 0, 200), ("b", 200, 200 + new))


def test_S13_slots_saved_through_the_block_table_are_those_that_a_hit_reads(script, eager):
    s = script(DEFERRED, eager=eager)
    tables = {"a": [7, 2, 5], "b": [7, 2, 11]}
    for name, start, count in (("a", 0, 10), ("b", 8, 3)):
        s.cache._view = FullAttentionGroupView(batch(name, tables[name], start), block_size=4)
        outputs = s.run({name: hit(tables[name], start, count)}, "k", "d")
    assert_rows(s, outputs, "b", ("a", 0, 8), ("b", 8, 11))


def test_S13_a_block_table_of_kernel_blocks_is_refused_before_anything_is_written():
    with pytest.raises(ConfigRefusedError, match="4 kernel blocks per KV block"):
        FullAttentionGroupView(batch("a", [0], 0, blocks_per_kv_block=4), block_size=128)


def batch(name, blocks, computed, **layout):
    """A runner's batch of one request."""
    group = SimpleNamespace(block_table=SimpleNamespace(cpu=torch.tensor([blocks], dtype=torch.int32)), **layout)
    return SimpleNamespace(
        req_ids=[name],
        req_id_to_index={name: 0},
        num_computed_tokens_cpu=torch.tensor([computed]),
        block_table=[group],
    )


def test_S14_slots_of_a_32_bit_block_table_do_not_wrap():
    view = FullAttentionGroupView(batch("a", [(1 << 31) - 1], 0), block_size=128)
    assert view.step_slots_cpu(["a"], {"a": 2}).tolist() == [((1 << 31) - 1) * 128, ((1 << 31) - 1) * 128 + 1]


@pytest.mark.parametrize("blocks", [[70_000, 3, 69_999], [69_999, 70_000, 3]])
def test_S14_rows_past_2_to_the_31_bytes_are_those_that_were_written(script, blocks):
    s = script(num_blocks=70_001)  # 280,004 slots of 8 KiB: the rows of the last blocks begin past 2**31 bytes
    wide = torch.zeros(12, 2048)
    wide[:, :4] = s.rows_of("a", 0, 12)
    s.begin({"a": prefill(blocks, 12)})
    s.cache.discard_step(s.cache.save_outputs(wide, {}, num_tokens_unpadded=12, num_tokens_padded=12))
    s.begin({"b": hit([*blocks, 0], 12, 1)}, finished=["a"])
    step = s.cache.save_outputs(torch.zeros(1, 2048), {}, num_tokens_unpadded=1, num_tokens_padded=1)
    assert torch.equal(s.cache.materialize(step, ["b"]).hidden_states["b"][:12, :4], s.rows_of("a", 0, 12))
