"""What `materialize` returns belongs to the caller."""

from __future__ import annotations

import torch

from palimpsest.prefix_cache.interface import ModelCachePolicy
from tests.support import hit, more, prefill

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def memory_of(tensor: torch.Tensor) -> range:
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())


def overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def test_the_outputs_of_100_steps_are_unchanged_at_the_end(script, eager):
    s = script(DEFERRED, eager=eager, num_blocks=8)
    kept = []
    for number in range(100):
        request, earlier = f"r{number}", f"r{number - 1}"
        block = number % 4
        parts = {request: prefill([block, 4 + block], 6)}
        if number:
            parts[f"h{number}"] = hit([(number - 1) % 4, 4 + (number - 1) % 4], 4, 1)
        outputs = s.run(parts, "k", "d", finished=[f"r{number - 2}", f"h{number - 1}"] if number > 1 else [])
        kept.append((number, request, earlier, outputs))
    for number, request, earlier, outputs in kept:
        for key, rows in (("k", outputs.mm_outputs["k"]), ("d", outputs.mm_outputs["d"])):
            assert torch.equal(rows[request], s.rows_of(request, 0, 6, key))
            if number:
                assert torch.equal(rows[f"h{number}"][:4], s.rows_of(earlier, 0, 4, key))
        assert torch.equal(outputs.hidden_states[request], s.rows_of(request, 0, 6))


def test_outputs_alias_neither_the_caches_memory_nor_another_requests_rows(script, eager):
    s = script(DEFERRED, eager=eager)
    s.run({"a": prefill([0], 4)}, "k", "d")
    outputs = s.run({"a": more([0, 1], 4), "b": hit([0, 2], 4, 1), "c": prefill([3], 2)}, "k", "d")
    given = [rows for per in (outputs.hidden_states, *outputs.mm_outputs.values()) for rows in per.values()]
    inside = [*s.cache._pool._storage.values()]
    inside += [rows for page in s.cache._controller._staging_pool._buffers for rows in page.values()]
    tasks = s.cache._controller._tasks.values()
    inside += [rows for task in tasks for chunk in task.chunks for rows in chunk.tensors.values()]
    for number, rows in enumerate(given):
        assert not any(overlap(memory_of(rows), memory_of(other)) for other in inside)
        assert not any(overlap(memory_of(rows), memory_of(other)) for other in given[number + 1 :])


def test_writing_into_the_outputs_changes_nothing_that_is_delivered_later(script, eager):
    s = script(DEFERRED, eager=eager)
    outputs = s.run({"a": prefill([0], 4)}, "k", "d")
    for per in (outputs.hidden_states, *outputs.mm_outputs.values()):
        per["a"].fill_(-5.0)
    outputs = s.run({"b": hit([0, 1], 4, 1)}, "k", "d", finished=["a"])
    for key in ("k", "d"):
        assert torch.equal(outputs.mm_outputs[key]["b"][:4], s.rows_of("a", 0, 4, key))
    assert torch.equal(outputs.hidden_states["b"][:4], s.rows_of("a", 0, 4))


def test_a_runner_in_inference_mode_is_served_and_gets_tensors_that_it_may_change_outside(script, eager):
    s = script(DEFERRED, eager=eager)
    with torch.inference_mode():
        s.run({"a": prefill([0], 4)}, "k", "d")
        s.idle(finished=["a"])
        outputs = s.run({"b": hit([0, 1], 4, 1), "c": prefill([2], 2)}, "k", "d")
    for key in ("k", "d"):
        assert torch.equal(
            outputs.mm_outputs[key]["b"], torch.cat([s.rows_of("a", 0, 4, key), s.rows_of("b", 4, 5, key)])
        )
    for per in (outputs.hidden_states, *outputs.mm_outputs.values()):
        for rows in per.values():
            rows.add_(1.0)
