"""Every wait ends, says who holds what, and shutdown leaves nothing behind."""

from __future__ import annotations

import logging
import threading

import pytest
import torch

from palimpsest.errors import (
    HostMemoryError,
    PalimpsestError,
    PrefixCacheError,
    ShutdownError,
    StaleReadError,
    WaitTimeoutError,
)
from palimpsest.prefix_cache.copies import LandedEvent
from palimpsest.prefix_cache.interface import (
    HIDDEN_KEY,
    KeyLayout,
    ModelCachePolicy,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
)
from palimpsest.prefix_cache.manager import PREFETCH_NAME
from tests.support import HASTY_S, Background, Gate, Script, held_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


class NeverLands:
    """A device event whose copy is stuck."""

    def query(self) -> bool:
        return False


def threads_of_the_cache() -> list[str]:
    names = ("palimpsest-", PREFETCH_NAME)
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


def test_a_device_copy_that_never_lands_ends_the_wait_with_an_error(script, monkeypatch):
    s = script(staging_claim_timeout_s=HASTY_S)
    monkeypatch.setattr(s.cache._copies, "freeze_into", lambda *_: LandedEvent(NeverLands(), HASTY_S))
    monkeypatch.setattr(s.cache._controller, "dispatch", lambda tasks: None)
    step = s.step({"a": prefill([0], 4)})
    with pytest.raises(WaitTimeoutError, match=r"a device copy did not land within 0\.05 s"):
        s.cache.materialize(step, ["a"])
    assert s.cache.unconsumed_steps() == []


def test_a_save_that_waits_for_a_stuck_write_says_which_task_and_who_writes(script):
    s = script(eager=False, staging_claim_timeout_s=HASTY_S)
    with held_at(s.cache._pool, "write") as gate:
        s.run({"a": prefill([0], 4)})
        gate.wait_until_reached()
        s.begin({"b": prefill([1], 4)})
        with pytest.raises(WaitTimeoutError, match=r"task 1 .*did not reach done.*request 'a'; the committer runs"):
            s.save()
    s.settle()
    s.cache.materialize(s.save(), ["b"])


def test_a_read_that_the_prefetch_thread_does_not_finish_ends_with_an_error(script):
    s = script(eager=False, staging_claim_timeout_s=HASTY_S)
    s.run({"a": prefill([0], 4)})
    with held_at(s.cache._pool, "read_into") as gate:
        step = s.step({"b": hit([0, 1], 4, 1)})
        gate.wait_until_reached()
        with pytest.raises(WaitTimeoutError, match=r"did not fetch key .* of request 'b'"):
            s.cache.materialize(step, ["b"])
    s.settle()


CALLS = {
    "new_step_starts": lambda s, step: s.begin({}),
    "save_outputs": lambda s, step: s.cache.save_outputs(None, {}, num_tokens_unpadded=0, num_tokens_padded=0),
    "materialize": lambda s, step: s.cache.materialize(step, ["a"]),
    "discard_step": lambda s, step: s.cache.discard_step(step),
    "reset": lambda s, step: s.cache.reset(),
}


@pytest.mark.parametrize("call", CALLS)
def test_after_shutdown_every_call_raises_the_packages_own_error(script, eager, call):
    s = script(eager=eager)
    step = s.step({"a": prefill([0], 4)})
    s.cache.shutdown()
    with pytest.raises(ShutdownError, match="shut down"):
        CALLS[call](s, step)
    s.cache.shutdown()


def test_shutdown_leaves_no_thread(eager):
    before = threads_of_the_cache()
    s = Script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "d")
    s.run({"b": hit([0, 1], 4, 1)}, "d")
    s.close()
    assert threads_of_the_cache() == before


def test_shutdown_wakes_a_save_that_waits_for_a_page(script):
    s = script(eager=False, staging_depth=1)
    s.step({"a": prefill([0], 4)})
    s.settle()
    s.begin({"b": prefill([1], 4)})
    with held_at(s.cache._controller._staging_pool, "claim_page_begin", after=True) as gate:
        save = Background(s.save)
        gate.wait_until_reached()
        gate.open()
        s.cache.shutdown()
        with pytest.raises(ShutdownError):
            save.result()


def test_shutdown_wakes_a_reader_that_waits_for_a_write_which_never_comes(script):
    s = script()
    s.cache._controller.dispatch = lambda tasks: None
    step = s.step({"a": prefill([0], 4), "b": hit([0, 1], 4, 1)})
    reader = Background(lambda: s.cache.materialize(step, ["b"]))
    s.cache.shutdown()
    with pytest.raises(PrefixCacheError):
        reader.result()


@pytest.mark.forges("a thread outlives the cache, and the specification has no such thread")
def test_a_thread_that_a_stuck_copy_keeps_is_named_and_the_call_returns(monkeypatch):
    s = Script(eager=False, staging_claim_timeout_s=HASTY_S)
    with held_at(s.cache._pool, "write") as gate:
        s.step({"a": prefill([0], 4)})
        gate.wait_until_reached()
        with pytest.raises(WaitTimeoutError, match=r"threads \['palimpsest-committer'\] did not end within 0.05 s"):
            s.cache.shutdown()
        s.cache.shutdown()
    s.cache._controller._committer.join(20)
    assert not s.cache._controller._committer.is_alive()


def test_shutdown_with_work_at_every_stage_is_bounded_and_releases_all(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "d")
    s.step({"a": more([0, 1], 4), "b": hit([0, 2], 4, 1)}, "d")
    s.begin({"c": hit([0, 3], 4, 1)})


def test_a_reset_hides_all_rows_and_writes_in_flight_never_become_visible(script):
    s = script(DEFERRED, eager=False)
    s.run({"a": prefill([0], 4)}, "k", "d")
    s.settle()
    with held_at(s.cache._pool, "write") as gate:
        s.run({"b": prefill([1], 4)}, "k", "d")
        gate.wait_until_reached()
        s.cache.reset()
    s.settle()
    for blocks in ([0, 5], [1, 6]):
        step = s.step({f"h{blocks[0]}": hit(blocks, 4, 1)}, "k", "d", finished=["a", "b"])
        with pytest.raises(PrefixCacheError, match="absent"):
            s.cache.materialize(step, [f"h{blocks[0]}"])
    outputs = s.run({"c": prefill([1], 4)}, "k", "d")
    outputs = s.run({"e": hit([1, 7], 4, 1)}, "k", "d")
    assert torch.equal(outputs.hidden_states["e"][:4], s.rows_of("c", 0, 4))
    assert torch.equal(outputs.mm_outputs["d"]["e"][:4], s.rows_of("c", 0, 4, "d"))


def test_a_write_of_an_earlier_epoch_never_lands_on_a_later_tenants_rows(script):
    s = script(DEFERRED, eager=False)
    s.run({"a": prefill([0], 4)}, "d")
    s.settle()
    with held_at(s.cache._controller, "begin_pool_write") as gate:
        s.idle(finished=["a"])  # escalates a's deferred rows; they stop before the pool
        gate.wait_until_reached()
        s.cache.reset()
    s.settle()
    s.run({"b": prefill([0], 4)}, "d")
    s.idle(finished=["b"])
    outputs = s.run({"c": hit([0, 1], 4, 1)}, "d")
    assert torch.equal(outputs.mm_outputs["d"]["c"][:4], s.rows_of("b", 0, 4, "d"))


def test_a_read_planned_before_a_reset_raises(script):
    s = script()
    s.run({"a": prefill([0], 4)})
    reads = Gate()
    s.cache._prefetch_pool.submit(reads.wait_here)
    step = s.step({"b": hit([0, 1], 4, 1)}, finished=["a"])
    s.cache.reset()
    reads.open()
    with pytest.raises(StaleReadError, match="reassigned"):
        s.cache.materialize(step, ["b"])


def test_a_live_request_goes_on_after_a_reset(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 3)}, "d")
    s.cache.reset()
    outputs = s.run({"a": more([0], 3)}, "d")
    assert torch.equal(outputs.hidden_states["a"], s.rows_of("a", 3, 4))


def test_a_configuration_that_does_not_fit_the_host_is_refused_at_start_up_in_gib():
    with pytest.raises(HostMemoryError, match=r"need \d+\.\d+ GiB of host memory .*GiB are available"):
        Script(num_blocks=1 << 24, layouts={HIDDEN_KEY: KeyLayout(torch.float32, (1 << 16,))})


def test_the_memory_of_a_configuration_is_logged_at_start_up(script, caplog):
    with caplog.at_level(logging.INFO, logger="palimpsest.prefix_cache.manager"):
        script(num_blocks=1024, layouts={HIDDEN_KEY: KeyLayout(torch.float32, (4096,))})
    assert "1024 blocks of 4 slots" in caplog.text
    assert "0.06 GiB" in caplog.text  # 4096 slots of 16 KiB


def test_every_error_is_of_the_packages_family_and_upstreams_names_map_into_it():
    assert issubclass(OmniPrefixCacheStagingTimeoutError, PalimpsestError)
    assert issubclass(OmniPrefixCacheUnmatchError, PalimpsestError)
    assert issubclass(WaitTimeoutError, TimeoutError)
    assert issubclass(HostMemoryError, MemoryError)
