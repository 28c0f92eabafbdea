"""Payload elements: one request's part of an output that passes through the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def build_mm_cpu(multimodal_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Host copies of all outputs, which the producer may overwrite afterwards.

    Tensors inside lists, tuples and dicts are copied too, shapes are kept, other values are passed on.
    """
    return {key: _own(value) for key, value in multimodal_outputs.items()}


def _own(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        host = value.detach().to("cpu")
        return host.clone() if host.data_ptr() == value.data_ptr() else host
    if isinstance(value, Mapping):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_own(item) for item in value]) if type(value) in (list, tuple) else value
    return value


def to_payload_element(
    value: Any,
    index: int,
    *,
    start: int,
    end: int,
    pass_lists_through: bool = False,
    seq_len: int | None = None,
) -> Any:
    """The part of `value` that belongs to request number `index`, whose rows are `start` to `end`.

    A tensor whose first dimension is `seq_len` (the step's token count) is cut to the request's rows; any
    other tensor stays whole. A list has an element per request and is indexed, or stays whole with
    `pass_lists_through`. A dict is taken apart value by value. Nothing is copied: tensors are views.
    Raises `IndexError` when a list that is indexed has no element for the request.
    """
    if isinstance(value, torch.Tensor):
        per_token = seq_len is not None and value.ndim > 0 and value.shape[0] == seq_len
        return value[start:end] if per_token else value
    if isinstance(value, Mapping):
        return {
            key: to_payload_element(
                item, index, start=start, end=end, pass_lists_through=pass_lists_through, seq_len=seq_len
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)) and not pass_lists_through:
        if index >= len(value):
            raise IndexError(f"a list of {len(value)} elements has none for request number {index}")
        return value[index]
    return value
