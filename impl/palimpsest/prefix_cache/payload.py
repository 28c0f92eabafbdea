"""Multimodal outputs on the host, and each request's element of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from palimpsest.errors import BadStepError


def build_mm_cpu(mm: Mapping[str, Any]) -> dict[str, Any]:
    """Copies on the host of every tensor in `mm`, inside dicts, lists and tuples too; they share no memory
    with the originals. Whatever else is there is handed on as it is."""
    return {key: _own(value) for key, value in mm.items()}


def _own(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    if isinstance(value, Mapping):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_own(item) for item in value]
    if isinstance(value, tuple):
        return _own_tuple(value)
    return value


def _own_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [_own(item) for item in value]
    # A named tuple takes its fields one by one.
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def to_payload_element(
    value: Any,
    index: int,
    *,
    start: int,
    end: int,
    pass_lists_through: bool = False,
    seq_len: int | None = None,
) -> Any:
    """The element of `value` for request number `index` of the batch, whose rows are `start` to `end`.

    A tensor whose first dimension is `seq_len` (the step's token count) gives a view of the request's
    rows. A list gives its item number `index`, or itself with `pass_lists_through`. A dict gives a dict of
    its values' elements. Anything else is given whole. Nothing is copied. Raises `BadStepError` for a list
    that has no item for the request.
    """
    if isinstance(value, torch.Tensor):
        return value[start:end] if value.ndim > 0 and value.shape[0] == seq_len else value
    if isinstance(value, dict):
        return {
            key: to_payload_element(
                item, index, start=start, end=end, pass_lists_through=pass_lists_through, seq_len=seq_len
            )
            for key, item in value.items()
        }
    if isinstance(value, list) and not pass_lists_through:
        return _item(value, index)
    return value


def _item(items: list[Any], index: int) -> Any:
    if not 0 <= index < len(items):
        raise BadStepError(f"a list of {len(items)} items has none for request number {index} of the batch")
    return items[index]
