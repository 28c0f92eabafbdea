"""Which outputs are cached: layouts, shapes, and what passes through."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import ConfigRefusedError
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout, ModelCachePolicy
from tests.support import DEVICE, hit, prefill


def test_rows_of_more_than_two_dimensions_are_kept_as_such(script, eager):
    s = script(eager=eager)
    deep = torch.arange(4 * 2 * 3, dtype=torch.float32).reshape(4, 2, 3)
    s.run({"a": prefill([0], 4)}, mm={"deep": deep})
    outputs = s.run({"b": hit([0, 1], 4, 1)}, finished=["a"], mm={"deep": torch.full((1, 2, 3), 9.0)})
    assert torch.equal(outputs.mm_outputs["deep"]["b"], torch.cat([deep, torch.full((1, 2, 3), 9.0)]))


def test_a_known_key_that_comes_as_a_list_passes_through_whole_and_is_not_merged(script, eager):
    s = script(eager=eager)
    s.run({"a": prefill([0], 4)}, "k")
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    outputs = s.run({"b": hit([0, 1], 4, 2)}, finished=["a"], mm={"k": parts})
    assert [t.tolist() for t in outputs.mm_outputs["k"]["b"]] == [[1.0, 2.0], [3.0]]
    outputs = s.run({"c": hit([0, 2], 4, 2)}, "k", finished=["b"])
    assert torch.equal(outputs.mm_outputs["k"]["c"][:4], s.rows_of("a", 0, 4, "k"))


def test_a_known_key_with_another_first_dimension_passes_through_whole(script):
    s = script()
    s.run({"a": prefill([0], 4)}, "k")
    odd = torch.arange(28, dtype=torch.float32).reshape(7, 4)
    outputs = s.run({"b": hit([0, 1], 4, 2)}, finished=["a"], mm={"k": odd})
    assert torch.equal(outputs.mm_outputs["k"]["b"], odd)


def test_a_declared_per_request_tensor_is_not_cached_although_its_first_dimension_is_the_token_count(script):
    s = script(ModelCachePolicy(per_request_keys=frozenset({"speaker"})))
    speaker = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    outputs = s.run({"a": prefill([0], 2), "b": prefill([1], 2)}, mm={"speaker": speaker})
    assert not s.cache._pool.has_key("speaker")
    assert torch.equal(outputs.mm_outputs["speaker"]["a"], speaker)
    assert torch.equal(outputs.mm_outputs["speaker"]["b"], speaker)


def test_a_declared_per_token_key_is_cached_also_with_one_dimension(script, eager):
    s = script(ModelCachePolicy(per_token_keys=frozenset({"score"})), eager=eager)
    s.run({"a": prefill([0], 4)}, mm={"score": torch.tensor([1.0, 2.0, 3.0, 4.0])})
    outputs = s.run({"b": hit([0, 1], 4, 2)}, finished=["a"], mm={"score": torch.tensor([5.0, 6.0])})
    assert outputs.mm_outputs["score"]["b"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_an_undeclared_key_is_told_by_its_shape(script):
    s = script()
    s.run({"a": prefill([0], 4)}, "k", mm={"flat": torch.zeros(4), "other": torch.zeros(3, 4), "name": "x"})
    assert set(s.cache._pool.layouts) == {HIDDEN_KEY, "k"}


def test_padded_rows_are_never_cached_or_delivered(script):
    s = script()
    s.begin({"a": prefill([0], 3)})
    padded = torch.cat([s._rows("k"), torch.full((5, 4), -7.0, device=DEVICE)])
    step = s.cache.save_outputs(padded, {"k": padded}, num_tokens_unpadded=3, num_tokens_padded=8)
    outputs = s.cache.materialize(step, ["a"])
    assert torch.equal(outputs.hidden_states["a"], s.rows_of("a", 0, 3, "k"))
    assert torch.equal(outputs.mm_outputs["k"]["a"], s.rows_of("a", 0, 3, "k"))
    assert s.pool("k", [3]).tolist() == [[0.0] * 4]


def test_a_deferred_key_that_is_not_per_token_at_a_step_passes_through(script):
    s = script(ModelCachePolicy(deferred_keys=frozenset({"d"})))
    s.run({"a": prefill([0], 4)}, "d")
    outputs = s.run({"b": hit([0, 1], 4, 2)}, mm={"d": [torch.ones(1), torch.ones(2)]})
    assert [t.tolist() for t in outputs.mm_outputs["d"]["b"]] == [[1.0], [1.0, 1.0]]


def test_a_key_that_is_declared_both_ways_is_refused(script):
    with pytest.raises(ConfigRefusedError, match=r"\['x'\] are declared per-request and per-token"):
        ModelCachePolicy(deferred_keys=frozenset({"x"}), per_request_keys=frozenset({"x"}))


def test_a_declared_layout_binds_the_first_save(script):
    s = script(layouts={"k": KeyLayout(torch.float64, (4,))})
    s.begin({"a": prefill([0], 4)})
    with pytest.raises(TypeError, match="'k' has rows of float64"):
        s.save("k")


def test_wide_pools_are_addressed_with_64_bits(script):
    """S14: slot number times row bytes passes 2**31."""
    s = script(num_blocks=70_000)
    width = 2048  # 280,000 slots of 8 KiB: the last row begins past 2**31 bytes
    s.begin({"a": prefill([69_999], 4)})
    wide = torch.arange(4 * width, dtype=torch.float32).reshape(4, width)
    s.cache.materialize(s.cache.save_outputs(wide, {}, num_tokens_unpadded=4, num_tokens_padded=4), ["a"])
    s.begin({"b": hit([69_999, 0], 4, 1)}, finished=["a"])
    step = s.cache.save_outputs(torch.zeros(1, width), {}, num_tokens_unpadded=1, num_tokens_padded=1)
    assert torch.equal(s.cache.materialize(step, ["b"]).hidden_states["b"][:4], wide)
