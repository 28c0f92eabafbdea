"""What a consumed step gives back: each request's prefix rows with this step's rows behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

from palimpsest.prefix_cache.payload import to_payload_element
from palimpsest.prefix_cache.steps import BatchShape


@dataclass
class StepOutputs:
    """The outputs of one step; they belong to the caller, and the cache never changes them again."""

    #: request -> rows `[prefix hit | this step]`; None when the model opted out
    hidden_states: MutableMapping[str, torch.Tensor] | None
    #: key -> request -> rows `[prefix hit | this step]`, or what passed through
    mm_outputs: dict[str, MutableMapping[str, Any]] = field(default_factory=dict)
    #: key -> request -> bool over the rows of the hit, True where a row was absent and zeros stand for it
    absent: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


class RowsByRequest(MutableMapping[str, torch.Tensor]):
    """The rows of one key by request. Those that stand in the step's rows are views of them, made when they
    are asked for."""

    __slots__ = ("_made", "_rows", "_shape", "_wanted")

    def __init__(
        self, rows: torch.Tensor, shape: BatchShape, wanted: Iterable[str], merged: Mapping[str, torch.Tensor]
    ) -> None:
        self._rows, self._shape, self._wanted = rows, shape, dict.fromkeys(wanted)
        #: requests whose rows do not stand in the step's, and views made already
        self._made = dict(merged)

    def __getitem__(self, req_id: str) -> torch.Tensor:
        made = self._made.get(req_id)
        if made is None:
            if req_id not in self._wanted:
                raise KeyError(req_id)
            start, stop = self._shape.span(req_id)
            made = self._made.setdefault(req_id, self._rows[start:stop])
        return made

    def __setitem__(self, req_id: str, rows: torch.Tensor) -> None:
        self._wanted[req_id] = None
        self._made[req_id] = rows

    def __delitem__(self, req_id: str) -> None:
        del self._wanted[req_id]
        self._made.pop(req_id, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    def __repr__(self) -> str:
        return repr(dict(self))


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
