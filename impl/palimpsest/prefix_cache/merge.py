"""What a consumed step gives back: each request's prefix rows with this step's rows behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from palimpsest.prefix_cache.payload import to_payload_element
from palimpsest.prefix_cache.steps import BatchShape


@dataclass
class StepOutputs:
    """The outputs of one step; they belong to the caller, and the cache never changes them again."""

    #: request -> rows `[prefix hit | this step]`; None when the model opted out
    hidden_states: dict[str, torch.Tensor] | None
    #: key -> request -> rows `[prefix hit | this step]`, or what passed through
    mm_outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: key -> request -> bool over the rows of the hit, True where a row was absent and zeros stand for it
    absent: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


def rows_by_request(rows: torch.Tensor, shape: BatchShape, wanted: Iterable[str]) -> dict[str, torch.Tensor]:
    """Each wanted request's rows of this step, as views of `rows`."""
    by_request = dict(zip(shape.req_order, torch.unsafe_split_with_sizes(rows, shape.counts), strict=True))
    if wanted == shape.req_order:
        return by_request
    return {req_id: by_request[req_id] for req_id in wanted}


def append_rows(prefix: torch.Tensor, hit_tokens: int, rows: torch.Tensor) -> torch.Tensor:
    """`prefix`, whose rows after the first `hit_tokens` are filled with `rows`."""
    prefix[hit_tokens:].copy_(rows)
    return prefix


def pass_through(value: Any, shape: BatchShape, wanted: Iterable[str], seq_len: int | None) -> dict[str, Any]:
    """Each wanted request's element of a value that is not per-token; a tensor whose first dimension is
    `seq_len` is cut by request, anything else stays whole."""
    elements = {}
    for req_id in wanted:
        start, stop = shape.span(req_id)
        elements[req_id] = to_payload_element(
            value, shape.place[req_id], start=start, end=stop, pass_lists_through=True, seq_len=seq_len
        )
    return elements
