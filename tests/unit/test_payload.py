"""Payload elements: own copies on the host, and each request's part without a copy."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from palimpsest.errors import BadStepError
from palimpsest.prefix_cache.payload import build_mm_cpu, to_payload_element


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


def test_copies_share_nothing_with_what_was_handed_in():
    live = {
        "rows": torch.arange(6.0).reshape(3, 2),
        "column": torch.arange(6.0).reshape(3, 2).T,
        "nested": {"list": [torch.ones(2), "text"], "tuple": (torch.ones(1), 3)},
        "pair": Pair(torch.ones(2), "name"),
        "none": None,
    }
    copies = build_mm_cpu(live)
    assert torch.equal(copies["rows"], live["rows"])
    assert torch.equal(copies["column"], live["column"])
    assert copies["column"].is_contiguous()
    for tensor in (
        live["rows"],
        live["column"],
        live["nested"]["list"][0],
        live["nested"]["tuple"][0],
        live["pair"][0],
    ):
        tensor.fill_(-1)
    assert copies["rows"][0, 1] == 1
    assert copies["column"][1, 0] == 1
    assert copies["nested"]["list"][0].tolist() == [1, 1]
    assert copies["nested"]["list"][1] == "text"
    assert copies["nested"]["tuple"][0].tolist() == [1]
    assert copies["nested"]["tuple"][1] == 3
    assert isinstance(copies["pair"], Pair)
    assert copies["pair"].left.tolist() == [1, 1]
    assert copies["none"] is None


def test_a_tensor_that_wants_grad_is_detached():
    assert not build_mm_cpu({"x": torch.ones(2, requires_grad=True)})["x"].requires_grad


def test_per_token_tensors_are_cut_as_views():
    rows = torch.arange(8).reshape(4, 2)
    part = to_payload_element(rows, 1, start=1, end=3, seq_len=4)
    assert torch.equal(part, rows[1:3])
    assert part.data_ptr() == rows[1:].data_ptr()


@pytest.mark.parametrize("seq_len", [None, 3])
def test_other_tensors_stay_whole(seq_len):
    for whole in (torch.arange(8).reshape(4, 2), torch.tensor(3.0)):
        assert to_payload_element(whole, 0, start=0, end=1, seq_len=seq_len) is whole


def test_lists_are_indexed_by_request_or_passed_through():
    items = [torch.zeros(1), torch.ones(4)]
    assert to_payload_element(items, 1, start=0, end=2, seq_len=4) is items[1]
    assert to_payload_element(items, 1, start=0, end=2, pass_lists_through=True, seq_len=4) is items


@pytest.mark.parametrize("index", [2, -1])
def test_a_list_without_an_item_for_the_request_is_an_error(index):
    with pytest.raises(BadStepError, match="2 items has none for request number"):
        to_payload_element([1, 2], index, start=0, end=1)


def test_dicts_are_taken_apart():
    value = {"rows": torch.arange(4), "items": ["a", "b"], "deep": {"rows": torch.arange(4)}, "n": 7}
    part = to_payload_element(value, 1, start=2, end=4, seq_len=4)
    assert part["rows"].tolist() == [2, 3]
    assert part["items"] == "b"
    assert part["deep"]["rows"].tolist() == [2, 3]
    assert part["n"] == 7
