"""A step that is refused changes nothing; a write that fails afterwards stops everything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from palimpsest.errors import (
    BadStepError,
    BudgetExceededError,
    ConfigRefusedError,
    HostMemoryError,
    KeyLayoutError,
    PrefixCacheError,
    StagingTimeoutError,
    WriteFailedError,
)
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.staging import StagingBufferHolder
from tests.support import HASTY_S, Gate, Part, Script, fail_at, hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def state_of(s: Script) -> dict:
    """All that a refused step must not change."""
    cache, controller = s.cache, s.cache._controller
    table = cache._slot_status
    return {
        "tenant": table.tenant.tolist(),
        "keys": {key: [table.get_slot_status(key).version.tolist(), table.state[key].tolist()] for key in table.keys},
        "layouts": dict(cache._pool.layouts),
        "tasks": sorted(controller._tasks),
        "bytes": controller._staged_bytes,
        "pages": [set(holders) for holders in controller._staging_pool._busy],
        "reads": len(cache._pending_reads),
        "steps": sorted(cache._step_ctxs),
        "live": dict(cache._request_tasks.live),
        "open": {req: task.tid for req, task in cache._request_tasks.deferred.items()},
    }


BAD_NEW = {
    "unaligned hit": Part([0, 1], 6, 2, hit=6),
    "hit without blocks": Part([], 4, 0, hit=4),
    "block out of range": Part([99, 1], 4, 1, hit=4),
    "negative block": Part([-1, 1], 4, 1, hit=4),
    "a block twice": Part([0, 0, 1], 8, 1, hit=8),
    "negative hit": Part([0], 0, 1, hit=-4),
}


@pytest.mark.parametrize("why", BAD_NEW)
def test_a_bad_hit_is_refused_before_anything_is_registered_and_ended_requests_are_flushed_all_the_same(script, why):
    s = script(DEFERRED)
    s.run({"a": prefill([3], 4)}, "d")
    with pytest.raises(BadStepError):
        s.begin({"b": BAD_NEW[why]}, finished=["a"])
    assert not s.cache._request_tasks.live
    assert torch.equal(s.pool("d", range(12, 16)), s.rows_of("a", 0, 4, "d"))
    assert not len(s.cache._pending_reads)
    outputs = s.run({"b": hit([3, 4], 4, 1)}, "d")
    assert torch.equal(outputs.mm_outputs["d"]["b"][:4], s.rows_of("a", 0, 4, "d"))


def test_a_request_that_is_new_twice_in_one_step_is_refused(script):
    s = script()
    twice = [SimpleNamespace(req_id="a", num_computed_tokens=0, block_ids=[[0]])] * 2
    with pytest.raises(BadStepError, match="'a' is scheduled as new twice"):
        s.cache.new_step_starts(
            SimpleNamespace(scheduled_new_reqs=twice, finished_req_ids=(), num_scheduled_tokens={"a": 1})
        )


def save_with(s: Script, **changes):
    """`save_outputs` of the step begun, with something wrong about it."""
    count = int(s.view.slots.numel())
    hidden, mm = s._rows(HIDDEN_KEY), {"d": s._rows("d"), "k": s._rows("k")}
    arguments = {"num_tokens_unpadded": count, "num_tokens_padded": count}
    s.view.slots = changes.pop("slots", s.view.slots)
    s.view.order = changes.pop("order", s.view.order)
    hidden = changes.pop("hidden", hidden)
    mm.update(changes.pop("mm", {}))
    return s.cache.save_outputs(hidden, mm, **{**arguments, **changes})


BAD_SAVES = {
    "no hidden states": {"hidden": None},
    "too few hidden rows": {"hidden": torch.zeros(2, 4)},
    "one-dimensional hidden states": {"hidden": torch.zeros(4)},
    "other width": {"hidden": torch.zeros(4, 5)},
    "other dtype of a key": {"mm": {"k": torch.zeros(4, 4, dtype=torch.float64)}},
    "other trailing shape of a deferred key": {"mm": {"d": torch.zeros(4, 2, 2)}},
    "the pool's own key": {"mm": {HIDDEN_KEY: torch.zeros(4, 4)}},
    "padded below unpadded": {"num_tokens_padded": 2},
    "negative count": {"num_tokens_unpadded": -1},
    "other count": {"num_tokens_unpadded": 3},
    "slot out of range": {"slots": torch.tensor([4, 5, 6, 64])},
    "negative slot": {"slots": torch.tensor([4, 5, 6, -1])},
    "a slot twice": {"slots": torch.tensor([4, 5, 6, 6])},
    "too few slots": {"slots": torch.tensor([4, 5, 6])},
    "slots of another dtype": {"slots": torch.tensor([4, 5, 6, 7], dtype=torch.int32)},
    "a request twice in the batch": {"order": ["b", "b"]},
}


@pytest.mark.parametrize("why", BAD_SAVES)
def test_a_bad_save_changes_nothing_and_the_same_step_can_be_saved_again(script, eager, why):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "d", "k")
    s.begin({"b": hit([0, 1], 4, 4)})
    s.settle()
    order, slots, before = s.view.order, s.view.slots, state_of(s)
    with pytest.raises(PrefixCacheError):
        save_with(s, **dict(BAD_SAVES[why]))
    assert state_of(s) == before
    s.view.order, s.view.slots = order, slots
    outputs = s.cache.materialize(save_with(s), ["b"])
    assert torch.equal(outputs.hidden_states["b"], torch.cat([s.rows_of("a", 0, 4), s.rows_of("b", 4, 8)]))


def test_a_step_larger_than_the_staging_pages_is_refused_by_name_and_number(script):
    s = script(staging_capacity_tokens=4)
    s.begin({"a": prefill([0, 1], 8)})
    before = state_of(s)
    with pytest.raises(BadStepError, match="8 tokens, and the staging capacity is 4"):
        s.save()
    assert state_of(s) == before


def test_a_step_whose_deferred_rows_exceed_the_whole_budget_is_refused_by_name_and_number(script):
    s = script(DEFERRED, gpu_staging_bytes=32)
    s.begin({"a": prefill([0], 4)})
    before = state_of(s)
    with pytest.raises(BudgetExceededError, match="64 bytes, and gpu_staging_bytes is 32"):
        s.save("d")
    assert state_of(s) == before
    s.run({"b": prefill([1], 1)}, "d")


def test_a_save_that_finds_no_page_gives_its_bytes_back_and_can_be_tried_again(script):
    s = script(DEFERRED, staging_depth=1, staging_claim_timeout_s=HASTY_S)
    first = s.step({"a": prefill([0], 4)}, "d")
    s.begin({"b": prefill([1], 4)})
    before = state_of(s)
    with pytest.raises(StagingTimeoutError, match=f"1 unconsumed step contexts.*page 0 held by step {first}"):
        s.save("d")
    assert state_of(s) == before
    s.cache.discard_step(first)
    s.cache.materialize(s.save("d"), ["b"])


@pytest.mark.parametrize("where", ["_copies.freeze_into", "_copies.clone", "_hits.copy_aside", "_pool.allocate"])
def test_an_error_inside_a_save_leaves_nothing_behind(script, monkeypatch, where):
    s = script(DEFERRED)
    s.run({"a": prefill([0], 4)})
    reads = Gate()
    s.cache._prefetch_pool.submit(reads.wait_here)
    s.step({"c": hit([0, 2], 4, 1)}, finished=["a"])
    s.begin({"b": prefill([0], 4)})
    before = state_of(s)
    holder, name = where.split(".")
    monkeypatch.setattr(getattr(s.cache, holder), name, lambda *_a, **_k: (_ for _ in ()).throw(MemoryError("planted")))
    with pytest.raises(MemoryError, match="planted"):
        s.save("d")
    assert state_of(s) == before
    monkeypatch.undo()
    outputs = s.cache.materialize(s.save("d"), ["b"])
    reads.open()
    assert torch.equal(outputs.hidden_states["b"], s.rows_of("b", 0, 4))
    for step in s.cache.unconsumed_steps():
        s.cache.discard_step(step)


def test_a_request_is_live_only_once_a_save_that_contains_it_has_published(script):
    s = script()
    s.run({"a": prefill([0], 4)})
    s.begin({"b": hit([0, 1], 4, 2)})
    with pytest.raises(BadStepError):
        s.cache.save_outputs(None, {}, num_tokens_unpadded=2, num_tokens_padded=2)
    s.begin({"b": hit([0, 1], 4, 2)})  # the engine tries the step again: still a hit, not a continuation
    outputs = s.cache.materialize(s.save(), ["b"])
    assert torch.equal(outputs.hidden_states["b"], torch.cat([s.rows_of("a", 0, 4), s.rows_of("b", 4, 6)]))
    outputs = s.run({"b": Part([0, 1], 6, 2, hit=4)})  # now it is one
    assert torch.equal(outputs.hidden_states["b"], s.rows_of("b", 6, 8))


def test_a_known_key_with_another_layout_is_named_with_both_layouts_before_anything_is_claimed(script):
    s = script()
    s.run({"a": prefill([0], 4)}, "k")
    s.begin({"b": prefill([1], 4)})
    with pytest.raises(
        KeyLayoutError, match=r"'k' has rows of float32\[4\], and this step hands in rows of float64\[4\]"
    ):
        save_with(s, mm={"k": torch.zeros(4, 4, dtype=torch.float64)})


def test_a_key_that_the_host_has_no_memory_for_is_refused_before_it_is_allocated(script, monkeypatch):
    s = script()
    monkeypatch.setattr("palimpsest.prefix_cache.sizing.available_host_bytes", lambda: 1000)
    s.begin({"a": prefill([0], 4)})
    with pytest.raises(HostMemoryError, match="GiB"):
        s.save()
    monkeypatch.undo()
    s.cache.materialize(s.save(), ["a"])


ENTRIES = {
    "new_step_starts": lambda s, step: s.begin({"c": prefill([2], 1)}),
    "save_outputs": lambda s, step: s.save(),
    "materialize": lambda s, step: s.cache.materialize(step, ["a"]),
    "reset": lambda s, step: s.cache.reset(),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_after_a_write_failed_every_entry_raises_with_task_request_slots_and_cause_but_discard_and_shutdown(
    entry,
):
    s = Script(eager=False)
    first = s.step({"a": prefill([1], 4)})
    s.settle()
    s.begin({"b": prefill([0], 4)})
    fail_at(s.cache._pool, "write", OSError("the pool is gone"))
    second = s.save()
    with pytest.raises(WriteFailedError):
        s.cache._controller.join(s.cache._join_next_step_tids)
    with pytest.raises(WriteFailedError, match="request 'b'") as caught:
        ENTRIES[entry](s, first)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(WriteFailedError, match=r"write failed.*request 'b'.*slots \[0, 1, 2, 3\]"):
        s.begin({"d": prefill([3], 1)})
    s.cache.discard_step(first)
    s.cache.discard_step(second)
    s.close()


def test_a_failed_write_releases_its_siblings_pages_and_bytes(script):
    s = script(DEFERRED, eager=False)
    fail_at(s.cache._pool, "write", OSError("the pool is gone"))
    step = s.step({"a": prefill([0], 4), "b": prefill([1], 4)}, "d")
    with pytest.raises(WriteFailedError):
        s.cache._controller.join(s.cache._join_next_step_tids)
    assert [holder.kind for holders in s.cache._controller._staging_pool._busy for holder in holders] == ["step"]
    s.cache.discard_step(step)


def test_a_continuing_request_decodes_after_a_refused_step(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0, 1], 4)})
    s.begin({"a": more([0, 1], 4)})
    with pytest.raises(BadStepError):
        save_with(s, num_tokens_unpadded=0, num_tokens_padded=0)
    outputs = s.cache.materialize(s.save(), ["a"])
    assert torch.equal(outputs.hidden_states["a"], s.rows_of("a", 4, 5))


def test_where_the_device_cannot_tell_whether_a_failed_saves_copies_landed_the_first_error_is_told(script):
    s = script()
    s.begin({"a": prefill([0], 2)})
    fail_at(s.cache._copies, "freeze_into", OSError("the copy failed"))
    fail_at(s.cache._copies, "settle", RuntimeError("the device is gone"))
    with pytest.raises(OSError, match="the copy failed"):
        s.save()
    assert [says for says, _ in s.cache._controller.staging.holds()] == ["page 0 is held by step 1"]
    s.cache._controller.staging.release_page(0, [StagingBufferHolder.for_step(1)])


@pytest.mark.parametrize("wrong", [{"block_ids": [["x"]]}, {"block_ids": [[0.5]]}, {"num_computed_tokens": None}])
def test_a_new_request_that_is_none_is_refused_and_ended_requests_are_flushed_all_the_same(script, wrong):
    s = script(DEFERRED)
    s.run({"a": prefill([0], 2)}, "d")
    request = {"req_id": "b", "num_computed_tokens": 0, "block_ids": [[1]], **wrong}
    bad = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(**request)], finished_req_ids={"a"}, num_scheduled_tokens={"b": 1}
    )
    with pytest.raises(BadStepError, match=r"request 'b' .* no integer"):
        s.cache.new_step_starts(bad)
    s.idle()
    assert torch.equal(s.pool("d", range(2)), s.rows_of("a", 0, 2, "d"))


def test_what_is_no_policy_is_refused_and_the_one_before_stays(script):
    s = script(DEFERRED)
    with pytest.raises(ConfigRefusedError, match="must be a ModelCachePolicy"):
        s.cache.register_policy({"deferred_keys": ["d"]})
    assert s.cache._policy is DEFERRED
