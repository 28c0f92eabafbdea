"""Interleavings that `palimpsest explore` found, each with what the code broke there."""

from __future__ import annotations

import pytest

from palimpsest.errors import ShutdownError
from palimpsest.prefix_cache.interface import ModelCachePolicy
from tests.support import Background, held_at, hit, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def test_tasks_that_shutdown_failed_between_publish_and_dispatch_are_not_queued(script):
    """TaskChain: the committer has ended and shutdown has failed what was published; only QUEUED tasks are handed
    over."""
    s = script(eager=False)
    s.begin({"a": prefill([0], 4)})
    with held_at(s.cache._controller, "dispatch") as gate:
        saving = Background(s.save)
        gate.wait_until_reached()
        s.cache.shutdown()
        gate.open()
        saving.result()
    assert not s.cache._controller._queue_lo


def test_a_save_whose_begun_step_shutdown_took_says_that_the_cache_was_shut_down(script):
    """The step is gone between the claim of its page and its freeze; it was an AssertionError."""
    s = script(eager=False)
    s.begin({"a": prefill([0], 4)})
    with held_at(s.cache, "freeze") as gate:
        saving = Background(s.save)
        gate.wait_until_reached()
        s.cache.shutdown()
        gate.open()
        with pytest.raises(ShutdownError):
            saving.result()


def test_a_begin_that_shutdown_overtakes_plans_no_read(script):
    """ReleasedOnce: it was found open before it had the lock; nobody would drop the reads that it planned."""
    s = script(eager=False)
    s.run({"z": prefill([0], 4)})
    with held_at(s.cache, "begin_step") as gate:
        beginning = Background(lambda: s.begin({"b": hit([0, 1], 4, 1)}))
        gate.wait_until_reached()
        s.cache.shutdown()
        gate.open()
        with pytest.raises(ShutdownError):
            beginning.result()
    assert not s.cache._pending_reads


def test_a_save_that_wants_to_flush_after_a_shutdown_says_so(script):
    """TaskChain: what it would seal has been failed and forgotten."""
    s = script(DEFERRED, eager=False, gpu_staging_bytes=4 * 16)
    s.cache.discard_step(s.step({"a": prefill([0], 4)}, "d"))
    s.settle()
    s.begin({"b": prefill([1], 4)})
    with held_at(s.cache, "seal_oldest") as gate:
        saving = Background(lambda: s.save("d"))
        gate.wait_until_reached()
        s.cache.shutdown()
        gate.open()
        with pytest.raises(ShutdownError):
            saving.result()


@pytest.mark.parametrize("failing", ["_install_keys", "copy of the second key"])
def test_a_publish_that_raises_half_way_has_changed_no_read_and_can_be_tried_again(script, monkeypatch, failing):
    """PreservedBeforeOverwrite, ReleasedOnce: reads were preserved, or dropped to be planned again, and then the
    publish raised: the step is still begun, and its reads must be as they were."""
    s = script(DEFERRED, eager=False)
    s.run({"z": prefill([0, 1], 8)}, "k")
    s.settle()
    pending = s.step({"b": hit([0, 3], 4, 1)}, "k", finished=["z"])
    with held_at(s.cache._hits, "fetch"):
        other = s.step({"c": hit([1, 4], 4, 1)}, "k")
        s.begin({"a": prefill([0, 1], 8), "e": hit([1, 5], 4, 1)}, finished=["b"])
        before = {read.rid for read in s.cache._pending_reads}
        with monkeypatch.context() as patch:
            fail_once(patch, s, failing)
            with pytest.raises(OSError, match="planted"):
                s.save("k")
        assert {read.rid for read in s.cache._pending_reads} == before
        assert not any(read.preserved for read in s.cache._pending_reads)
        s.cache.discard_step(s.save("k"))
    s.cache.discard_step(pending)
    s.cache.discard_step(other)


def fail_once(patch, s, what):
    """Make a part of the publish raise."""
    if what == "_install_keys":
        patch.setattr(s.cache, "_install_keys", lambda storage: raising())
        return
    real, copies = s.cache._pool.rows, []

    def rows(key, slots):
        copies.append(key)
        return real(key, slots) if len(copies) == 1 else raising()

    patch.setattr(s.cache._pool, "rows", rows)


def raising():
    raise OSError("planted")
