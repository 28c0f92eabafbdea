"""Two oracles over every delivered row: its identity, exactly, and its values, recomputed without a cache.

The identity says who *should* have written the row: for a new row the request's own generation, for a hit
the generation that computed the token, as the block manager knows. The values are compared with a plain
forward over the request's whole sequence. Neither asks the cache anything.

What is expected: the first step of a generation delivers `[hit rows | new rows]` from position 0, each later
step its new rows. A preempted request is a new generation when it comes back, so that its rows from position
0 on are delivered again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from palimpsest.prefix_cache.interface import HIDDEN_KEY
from palimpsest.prefix_cache.merge import StepOutputs
from palimpsest.runners.reference.identity import describe, read_tags, tags
from palimpsest.runners.reference.outputs import OutputKey
from palimpsest.runners.reference.plan import Share
from palimpsest.runners.reference.requests import Sequence

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Recompute = Callable[[list[int]], dict[str, torch.Tensor]]

TOLERANCE = 1e-4
_KEPT_FAULTS = 10


@dataclass
class Verdict:
    """What the oracles found. A row counts once per key."""

    rows_checked: int = 0
    rows_wrong: int = 0
    identity_wrong: int = 0
    values_wrong: int = 0
    rows_missing: int = 0
    max_error: float = 0.0
    #: the first faults, in words
    faults: list[str] = field(default_factory=list)

    def note(self, fault: str) -> None:
        """Keep a fault's description, up to a bound."""
        if len(self.faults) < _KEPT_FAULTS:
            self.faults.append(fault)


@dataclass(frozen=True)
class _Delivery:
    """Rows of one key that came out of one step, from position `first` on."""

    key: OutputKey
    first: int
    values: torch.Tensor
    identity_wrong: BoolArray


class Oracle:
    """Takes deliveries, in any thread but one at a time, and judges a sequence when it has ended."""

    def __init__(self, keys: list[OutputKey], recompute: Recompute) -> None:
        self._keys, self._recompute = keys, recompute
        self._deliveries: dict[Sequence, list[_Delivery]] = {}
        self.verdict = Verdict()

    def take(self, share: Share, outputs: StepOutputs) -> None:
        """Check the identities of what a step delivered for one request, and keep its values for `judge`."""
        for key in self._keys:
            by_request = outputs.hidden_states if key.name == HIDDEN_KEY else outputs.mm_outputs.get(key.name)
            rows = None if by_request is None else by_request.get(share.req_id)
            self._take_rows(share, key, rows, outputs.absent.get(key.name, {}).get(share.req_id))

    def _take_rows(self, share: Share, key: OutputKey, rows: torch.Tensor | None, absent: torch.Tensor | None) -> None:
        first = 0 if share.new else share.start
        expected = share.stop - first
        if rows is None or tuple(rows.shape) != (expected, *key.row_shape):
            shape = None if rows is None else list(rows.shape)
            self._miss(share, key, expected, f"{shape} delivered for {expected} rows of {list(key.row_shape)}")
            return
        if absent is not None:
            self.verdict.note(f"{_name(share, key)}: {int(absent.sum())} rows are reported absent")
        wrong = self._check_identity(share, key, first, rows)
        values = rows.reshape(expected, -1)[:, : key.values]
        self._deliveries.setdefault(share.sequence, []).append(_Delivery(key, first, values, wrong))

    def _miss(self, share: Share, key: OutputKey, expected: int, what: str) -> None:
        self.verdict.rows_checked += expected
        self.verdict.rows_wrong += expected
        self.verdict.rows_missing += expected
        self.verdict.note(f"{_name(share, key)}: {what}")

    def _check_identity(self, share: Share, key: OutputKey, first: int, rows: torch.Tensor) -> BoolArray:
        own = np.full(share.count, share.generation, dtype=np.int64)
        writers = np.concatenate([share.hit_writers, own])
        expected = tags(writers, np.arange(first, share.stop, dtype=np.int64), key.number)
        found = read_tags(rows)
        wrong = np.asarray((found != expected).any(axis=1))
        for row in np.flatnonzero(wrong)[:1]:
            self.verdict.note(
                f"{_name(share, key)}, position {first + row}: the row should be of "
                f"{describe(expected[row].astype(np.float64))}, and is of {describe(found[row])}"
            )
        return wrong

    def judge(self, sequence: Sequence) -> None:
        """Compare the values of all that was delivered for a sequence with a plain forward over it."""
        deliveries = self._deliveries.pop(sequence, [])
        if not deliveries:
            return
        length = max(delivery.first + delivery.values.shape[0] for delivery in deliveries)
        expected = self._recompute(sequence.tokens[:length])
        for delivery in deliveries:
            self._judge(sequence, delivery, expected[delivery.key.name])

    def _judge(self, sequence: Sequence, delivery: _Delivery, expected: torch.Tensor) -> None:
        rows = delivery.values
        right = expected[delivery.first : delivery.first + rows.shape[0]].cpu()
        error, wrong = compare(rows, right)
        bad = wrong | delivery.identity_wrong
        for row in np.flatnonzero(wrong)[:1]:
            self.verdict.note(
                f"request {sequence.req_id!r}, key {delivery.key.name!r}, position {delivery.first + row}: "
                f"the values differ from a recomputation by up to {error:.3g}"
            )
        self._count(bad, wrong, delivery.identity_wrong, error)

    def _count(self, bad: BoolArray, wrong: BoolArray, identity_wrong: BoolArray, error: float) -> None:
        verdict = self.verdict
        verdict.rows_checked += bad.size
        verdict.rows_wrong += int(bad.sum())
        verdict.identity_wrong += int(identity_wrong.sum())
        verdict.values_wrong += int(wrong.sum())
        verdict.max_error = max(verdict.max_error, error)

    @property
    def unjudged(self) -> int:
        """Sequences with deliveries that were not yet judged."""
        return len(self._deliveries)


def compare(rows: torch.Tensor, expected: torch.Tensor) -> tuple[float, BoolArray]:
    """The largest difference, and which rows differ by more than the tolerance.

    The tolerance is absolute, 1e-4; for a dtype of lower precision two units in the last place are added.
    """
    right = expected.to(rows.dtype).to(torch.float64)
    difference = (rows.to(torch.float64) - right).abs()
    eps = torch.finfo(rows.dtype).eps
    allowed = TOLERANCE + (2 * eps * right.abs() if eps > TOLERANCE else torch.zeros_like(right))
    within = difference <= allowed  # a NaN is not within
    error = float(difference.max()) if difference.numel() else 0.0
    return error, np.asarray(~within.all(dim=1).numpy())


def _name(share: Share, key: OutputKey) -> str:
    return f"request {share.req_id!r} (generation {share.generation}), key {key.name!r}"
