"""Which of a step's outputs are written at once, which when their request ends, and which pass through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from palimpsest.errors import BadStepError, KeyLayoutError
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout, ModelCachePolicy
from palimpsest.prefix_cache.records import Rows, WriteChunk, WriteRecord

Layouts = Mapping[str, KeyLayout]


class SplitOutputs(NamedTuple):
    """A step's outputs by what becomes of them; nothing is copied yet."""

    #: key -> the step's rows, written at once
    immediate: Rows
    #: what passes through to the outputs; a deferred key's rows of this step among it
    leftover: dict[str, Any]
    #: the deferred rows as one record, None when there are none
    deferred: WriteRecord | None
    #: the batch's requests; request i has rows bounds[i] to bounds[i + 1]
    req_order: list[str]
    bounds: list[int]

    @property
    def deferred_chunks(self) -> list[tuple[str, WriteChunk]]:
        """Each request's share of the deferred rows."""
        if self.deferred is None:
            return []
        shares = zip(self.req_order, self.bounds, self.bounds[1:], strict=False)
        return [(req_id, WriteChunk.of(self.deferred, start, stop)) for req_id, start, stop in shares if stop > start]


def is_step_token_tensor(value: object, n: int, padded: int) -> bool:
    """Whether `value` looks per-token: two dimensions or more, the first the step's (padded) token count."""
    return isinstance(value, torch.Tensor) and value.ndim >= 2 and n > 0 and value.shape[0] in (n, padded)


def split_outputs(
    hidden: torch.Tensor | None,
    mm: Mapping[str, Any],
    n: int,
    padded: int,
    policy: ModelCachePolicy,
    layouts: Layouts,
    declared: Layouts,
) -> tuple[Rows, Rows, dict[str, Any]]:
    """The immediate rows, the deferred rows and the leftover of a step of `n` tokens, as views.

    Raises `BadStepError` for hidden states that do not fit, `KeyLayoutError` for a per-token value whose
    dtype or trailing shape is not its key's.
    """
    immediate: Rows = {}
    deferred: Rows = {}
    leftover: dict[str, Any] = {}
    if policy.hidden_key is not None and n > 0:
        immediate[HIDDEN_KEY] = _hidden_rows(hidden, n)
    for key, value in mm.items():
        if key == HIDDEN_KEY:
            raise BadStepError(f"multimodal key {key!r} is the pool's name for the hidden states")
        if not _is_per_token(key, value, n, padded, policy):
            leftover[key] = value
            continue
        rows = _first_rows(value, n)
        if policy.skip_immediate_mm(key):
            deferred[key] = leftover[key] = rows
        else:
            immediate[key] = rows
    for key, rows in (*immediate.items(), *deferred.items()):
        _check_memory(key, rows)
        known = layouts.get(key) or declared.get(key)
        if known is not None and not (rows.dtype is known.dtype and rows.shape[1:] == known.row_shape):
            raise KeyLayoutError(
                f"key {key!r} has rows of {known}, and this step hands in rows of {KeyLayout.of(rows)}"
            )
    return immediate, deferred, leftover


def _hidden_rows(hidden: torch.Tensor | None, n: int) -> torch.Tensor:
    if not isinstance(hidden, torch.Tensor) or hidden.ndim < 2:
        raise BadStepError(f"hidden states must be a tensor of two dimensions or more, got {_describe(hidden)}")
    if hidden.shape[0] < n:
        raise BadStepError(f"hidden states have {hidden.shape[0]} rows, and the step has {n} tokens")
    return _first_rows(hidden, n)


def _check_memory(key: str, rows: torch.Tensor) -> None:
    if rows.is_meta or rows.layout is not torch.strided:
        raise BadStepError(f"key {key!r} has rows on {rows.device} of layout {rows.layout}, which cannot be copied")


def _first_rows(value: torch.Tensor, n: int) -> torch.Tensor:
    rows = value.detach() if value.requires_grad else value
    return rows if rows.shape[0] == n else rows[:n]


def _is_per_token(key: str, value: object, n: int, padded: int, policy: ModelCachePolicy) -> bool:
    if key in policy.per_request_keys:
        return False
    if key in policy.per_token_keys:
        return isinstance(value, torch.Tensor) and value.ndim >= 1 and n > 0 and value.shape[0] in (n, padded)
    return is_step_token_tensor(value, n, padded)


def _describe(value: object) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
