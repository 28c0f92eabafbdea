"""Row checks: a planted corruption of the pool, of a staging page, or of a use after free is found on delivery."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import CorruptRowsError, PrefixCacheError
from palimpsest.prefix_cache import checksums, slow_waits
from palimpsest.prefix_cache.checksums import POISON, digests, is_poisoned, poison
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy, RowChecks
from palimpsest.prefix_cache.staging import StagingBufferHolder
from tests.support import fail_at, held_at, hit, more, prefill

LATE = "late"
POLICY = ModelCachePolicy(deferred_keys=frozenset({LATE}))
DIGEST, LOG, POISONED = RowChecks.DIGEST, RowChecks.DIGEST_LOG, RowChecks.POISON


@pytest.fixture
def checked(script, eager):
    """A runner whose rows are checked, in both modes of the cache."""
    return lambda checks, **options: script(POLICY, eager=eager, row_checks=checks, **options)


def written(s, request="a", blocks=(0, 1), keys=("talk", LATE)):
    """A request whose rows are in the pool."""
    s.run({request: prefill(list(blocks), 4 * len(blocks))}, *keys)
    s.idle(finished=[request])
    s.settle()
    s.idle()


@pytest.mark.parametrize("checks", RowChecks)
def test_right_rows_are_delivered_whatever_is_checked(checked, checks):
    s = checked(checks, staging_depth=2)
    written(s)
    out = s.run({"b": hit([0, 1, 2], 8, 3)}, "talk", LATE)  # out of the pool
    assert torch.equal(out.hidden_states["b"][:8], s.rows_of("a", 0, 8))
    assert torch.equal(out.mm_outputs[LATE]["b"][:8], s.rows_of("a", 0, 8, LATE))
    # same-step hit; a deferred clone; then blocks reused under a pending read, which preserves its rows
    s.run({"c": prefill([4, 5], 8), "d": hit([4, 5, 6], 8, 1)}, "talk", LATE, finished=["b"])
    s.run({"e": hit([4, 5, 7], 8, 1)}, "talk", LATE, finished=["c", "d"])
    s.begin({"f": hit([0, 1, 8], 8, 1)}, finished=["e"])
    first = s.save("talk", LATE)
    s.step({"g": prefill([0, 1], 8)}, "talk", LATE, finished=["f"])
    out = s.cache.materialize(first, ["f"])
    assert torch.equal(out.hidden_states["f"][:8], s.rows_of("a", 0, 8))
    for step_id in s.cache.unconsumed_steps():
        s.cache.materialize(step_id, ["g"])
    s.cache.reset()
    s.run({"h": prefill([0, 1], 8)}, "talk", LATE, finished=["g"])
    assert s.cache.stats.rows_corrupt == 0


@pytest.mark.forges("a row of the pool is changed behind the cache's back")
@pytest.mark.parametrize("key", [HIDDEN_KEY, "talk", LATE])
def test_a_flipped_bit_in_the_pool_is_found_by_its_checksum(checked, key):
    s = checked(DIGEST)
    written(s)
    s.cache._pool._storage[key].view(torch.uint8)[5, 3] ^= 1
    with pytest.raises(CorruptRowsError, match=rf"request 'b': 1 rows of key '{key}'.*checksum.*slots \[5\]"):
        s.run({"b": hit([0, 1, 2], 8, 3)}, "talk", LATE)
    assert s.cache.stats.rows_corrupt == 1
    s.run({"c": prefill([4], 4)}, "talk", LATE, finished=["b"])  # the step is consumed, and the cache goes on


@pytest.mark.forges("a row of the pool is changed behind the cache's back")
def test_another_tenants_row_is_found_by_its_checksum(checked):
    s = checked(DIGEST)
    written(s)
    written(s, "b", (2, 3))
    s.cache._pool._storage["talk"][0] = s.cache._pool._storage["talk"][8]
    with pytest.raises(CorruptRowsError, match=r"slots \[0\]"):
        s.run({"c": hit([0, 1, 4], 8, 1)}, "talk", LATE)


@pytest.mark.forges("a row of the pool is changed behind the cache's back")
def test_where_it_only_logs_the_row_is_delivered_and_counted_and_messages_are_few(checked, caplog):
    s = checked(LOG)
    written(s)
    s.cache._pool._storage["talk"].view(torch.uint8)[0, 0] ^= 1
    with caplog.at_level(logging.ERROR, "palimpsest.prefix_cache"):
        for name in "bcd":
            s.run({name: hit([0, 1, 2], 8, 1)}, "talk", LATE, finished=[chr(ord(name) - 1)] if name > "b" else [])
    assert s.cache.stats.rows_corrupt == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert "delivered all the same" in message
    assert "request 'b': 1 rows of key 'talk'" in message


@pytest.mark.forges("a staging page is changed behind the cache's back")
@pytest.mark.parametrize("checks", [DIGEST, LOG])
def test_a_stale_page_is_found_by_its_checksum(checked, checks, caplog):
    s = checked(checks)
    step_id = s.step({"a": prefill([0, 1], 8)}, "talk")
    s.settle()
    s.cache._controller.staging._buffers[0]["talk"][3] = 7.0
    if checks is DIGEST:
        with pytest.raises(CorruptRowsError, match=rf"step {step_id}: 1 rows of key 'talk'.*slots \[3\]"):
            s.cache.materialize(step_id, ["a"])
    else:
        s.cache.materialize(step_id, ["a"])
        assert "delivered all the same" in caplog.text
    assert s.cache.stats.rows_corrupt == 1


@pytest.mark.forges("a pool write is left out")
def test_a_row_that_never_landed_is_found_by_its_poison(checked):
    s = checked(POISONED)
    written(s)
    real = s.cache._pool.write
    s.cache._pool.write = lambda key, slots, rows: None if key == "talk" else real(key, slots, rows)
    written(s, "b", (0, 1))
    s.cache._pool.write = real
    with pytest.raises(CorruptRowsError, match=r"request 'c': 8 rows of key 'talk'.*freed memory, filled with 0xdb"):
        s.run({"c": hit([0, 1, 2], 8, 1)}, "talk", LATE)


@pytest.mark.forges("a page is released before its step was consumed")
def test_a_page_that_was_freed_too_early_is_found_by_its_poison(checked):
    s = checked(POISONED)
    step_id = s.step({"a": prefill([0, 1], 8)}, "talk")
    s.settle()
    s.cache._controller.staging.release_page(0, [StagingBufferHolder.for_step(step_id)])
    with pytest.raises(CorruptRowsError, match=rf"step {step_id}: 8 rows.*freed memory"):
        s.cache.materialize(step_id, ["a"])


def test_a_read_that_copies_while_its_slots_are_poisoned_gets_its_preserved_rows(script):
    s = script(POLICY, eager=False, row_checks=POISONED)
    written(s)
    with held_at(s.cache._hits, "end_fetch") as gate:  # the prefetch thread has copied the rows, and holds on
        step_id = s.step({"b": hit([0, 1, 2], 8, 1)}, "talk")
        gate.wait_until_reached()
        later = s.step({"c": prefill([0, 1], 8), "b": more([0, 1, 2], 9)}, "talk")
        gate.open()
        out = s.cache.materialize(step_id, ["b"])
    assert torch.equal(out.mm_outputs["talk"]["b"][:8], s.rows_of("a", 0, 8, "talk"))
    s.cache.discard_step(later)


# ---------------------------------------------------------------- the arithmetic

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 40))
DTYPES = st.sampled_from([torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.bool])


@given(SHAPES, DTYPES, st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_changes_the_checksum_of_its_row_alone(shape, dtype, data):
    rows = torch.randint(0, 2, shape).to(dtype)
    at, byte = data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, shape[1] * dtype.itemsize - 1))
    before = digests(rows)
    rows.view(torch.uint8)[at, byte] ^= 1 << data.draw(st.integers(0, 7))
    changed = digests(rows) != before
    assert changed.nonzero().flatten().tolist() == [at]


def test_the_checksum_is_that_of_the_bytes_wherever_they_stand():
    rows = torch.randint(0, 100, (6, 12), dtype=torch.int16)
    apart = torch.zeros(6, 25, dtype=torch.int16)[:, 1:25:2].copy_(rows)
    shifted = torch.zeros(73, dtype=torch.int16)[1:].view(6, 12).copy_(rows)
    assert not apart.is_contiguous()
    assert digests(rows).tolist() == digests(apart).tolist()
    assert is_poisoned(shifted).tolist() == [False] * 6


def test_torn_rows_and_rows_that_changed_places_have_other_checksums():
    rows = torch.randint(0, 1 << 30, (2, 16))
    torn = rows[:1].clone()
    torn[0, 8:] = rows[1, 8:]
    halves = torch.cat([rows[:1, 8:], rows[:1, :8]], 1)
    assert len({digests(each)[0].item() for each in (rows[:1], rows[1:], torn, halves)}) == 4


def test_rows_without_bytes_and_no_rows_are_fine():
    assert digests(torch.empty(3, 0)).tolist() == [0, 0, 0]
    assert digests(torch.empty(0, 4)).tolist() == []
    assert is_poisoned(torch.empty(0, 4)).tolist() == []


def test_only_rows_that_have_the_pattern_in_each_byte_are_poisoned():
    rows = torch.zeros(4, 6, dtype=torch.float32)
    poison(rows[1])
    poison(rows[2, :5])
    assert is_poisoned(rows).tolist() == [False, True, False, False]
    tiny = torch.full((2, 1), POISON, dtype=torch.uint8)
    assert is_poisoned(tiny).tolist() == [False, False]  # too short to be sure


def test_the_rate_of_messages_is_limited(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(slow_waits.time, "monotonic", lambda: now[0])
    limit = slow_waits.RateLimit()
    assert [limit.passes() for _ in range(3)] == ["", None, None]
    now[0] = slow_waits.EVERY_S
    assert limit.passes() == " (2 more were not logged)"


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 64)])
def test_the_device_computes_the_same_checksums(monkeypatch, shape):
    rows = torch.randint(0, 1 << 62, shape)

    class Elsewhere(torch.Tensor):
        """Rows that say that they are not on the host, so that the device's arithmetic is taken."""

        @property
        def device(self):
            return torch.device("meta")

    monkeypatch.setattr(checksums, "_as_words", lambda each: each.as_subclass(Elsewhere))
    there = digests(rows)
    monkeypatch.undo()
    assert there.tolist() == digests(rows).tolist()


def test_a_check_that_cannot_be_planned_fails_its_read_and_no_step(script):
    s = script(POLICY, row_checks=DIGEST)
    written(s)
    fail_at(s.cache._guard, "planned", MemoryError("no room for checksums"))
    step_id = s.step({"b": hit([0, 1, 2], 8, 3)}, "talk", LATE)
    with pytest.raises(PrefixCacheError, match=r"no plan to read key .*no room for checksums"):
        s.cache.materialize(step_id, ["b"])
