"""Holds every row against what a plain run of its request gives, and against the identity that it carries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from palimpsest.host_mirror import HostMirror
from palimpsest.runners.sparse.model import IDENTITY, PlainRun, SparseSize
from palimpsest.runners.sparse.requests import Sequence

_CLOSE = 1e-9


@dataclass
class Verdict:
    """What was compared, and each fault in words."""

    host_rows: int = 0
    device_rows: int = 0
    gathered_rows: int = 0
    clean_pages: int = 0
    faults: list[str] = field(default_factory=list)


def identity(writers: list[tuple[int, int]], positions: Iterable[int], layer: int) -> torch.Tensor:
    """The identity columns of rows: request, generation (the request's only one), position, layer, step."""
    lines = [(number, 0, position, layer, step) for (number, step), position in zip(writers, positions, strict=True)]
    return torch.tensor(lines, dtype=torch.float64).view(-1, IDENTITY)


class RowJudge:
    """Compares rows after each step. `plains`: the plain run of each request number, of all tokens it can have."""

    def __init__(self, mirror: HostMirror, size: SparseSize, plains: dict[int, PlainRun], *, eager: bool) -> None:
        self._mirror, self._size, self._plains, self._eager = mirror, size, plains, eager
        self._rows = mirror.config.block_rows
        self.verdict = Verdict()
        #: (request, position, step) of each row that was rejected
        self._rejected: set[tuple[int, int, int]] = set()

    def reject(self, sequence: Sequence, positions: range, step: int) -> None:
        """These rows were written and then rejected."""
        self._rejected.update((sequence.number, position, step) for position in positions)

    def after_step(self, sequences: Iterable[Sequence], step: int) -> None:
        """Everything queued has landed: each accepted row of each layer lies on the host as on the device. Without
        eager mirroring, the rows of clean pages do."""
        for sequence in sequences:
            if not sequence.host_blocks:
                continue
            for layer in range(self._size.layers):
                self._judge_layer(sequence, layer, step)
        if self._eager:
            self._judge_rejected(step)

    def clean(self, pages: Iterable[tuple[Sequence, int]], step: int) -> None:
        """Pages that were reported to be on the host are, in every layer."""
        for sequence, page in pages:
            self.verdict.clean_pages += 1
            stop = min((page + 1) * self._rows, sequence.computed)
            positions = list(range(page * self._rows, stop))
            for layer in range(self._size.layers):
                self._compare_host(sequence, layer, positions, f"clean page {page}", step)

    def gathered(self, layer: int, rows: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Rows that attention got carry the identities of the positions that it asked for."""
        self.verdict.gathered_rows += rows.shape[0]
        self._check(torch.equal(rows[:, -IDENTITY:].cpu(), expected), f"{what}: layer {layer} got other rows")

    # ------------------------------------------------------------ one layer of one request

    def _judge_layer(self, sequence: Sequence, layer: int, step: int) -> None:
        positions = list(range(sequence.computed))
        if not self._eager:
            positions = [position for position in positions if position // self._rows in sequence.clean]
        self._compare_host(sequence, layer, positions, "mirrored rows", step)
        held = [position for position in range(sequence.computed) if position // self._rows in sequence.resident]
        device = self._device_rows(sequence, layer, held)
        self.verdict.device_rows += len(held)
        right = self._right(sequence, layer, held, device)
        self._check(right, f"step {step}: {sequence.req_id}, layer {layer}: rows on the device are not the rows")
        both = sorted(set(positions) & set(held))
        same = torch.equal(self._device_rows(sequence, layer, both), self._host_rows(sequence, layer, both))
        self._check(same, f"step {step}: {sequence.req_id}, layer {layer}: host and device rows differ")

    def _compare_host(self, sequence: Sequence, layer: int, positions: list[int], what: str, step: int) -> None:
        rows = self._host_rows(sequence, layer, positions)
        self.verdict.host_rows += len(positions)
        right = self._right(sequence, layer, positions, rows)
        self._check(right, f"step {step}: {sequence.req_id}, layer {layer}: {what} on the host are not the rows")

    def _right(self, sequence: Sequence, layer: int, positions: list[int], rows: torch.Tensor) -> bool:
        latent = self._plains[sequence.number].rows[layer][positions].cpu()
        writers = [sequence.writers[position] for position in positions]
        tags = torch.equal(rows[:, -IDENTITY:], identity(writers, positions, layer))
        return tags and torch.allclose(rows[:, :-IDENTITY], latent, rtol=_CLOSE, atol=_CLOSE)

    def _host_rows(self, sequence: Sequence, layer: int, positions: list[int]) -> torch.Tensor:
        slots = [sequence.host_blocks[at // self._rows] * self._rows + at % self._rows for at in positions]
        return self._mirror.host[layer][slots]

    def _device_rows(self, sequence: Sequence, layer: int, positions: list[int]) -> torch.Tensor:
        source = self._size.sources[layer]
        blocks = [sequence.resident[at // self._rows][source] for at in positions]
        return self._mirror.resident[layer][blocks, [at % self._rows for at in positions]].cpu()

    def _judge_rejected(self, step: int) -> None:
        """No row that was rejected lies anywhere on the host."""
        if not self._rejected:
            return
        wanted = np.array(sorted(self._rejected), dtype=np.int64)
        for layer, host in enumerate(self._mirror.host):
            tags = host[:, -IDENTITY:].numpy()[:, [0, 2, 4]].astype(np.int64)
            found = (_code(tags)[:, None] == _code(wanted)[None, :]).any()
            self._check(not found, f"step {step}: a rejected row lies on the host in layer {layer}")

    def _check(self, right: bool, fault: str) -> None:
        if not right:
            self.verdict.faults.append(fault)


def _code(lines: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(lines @ np.array([1 << 40, 1 << 20, 1], dtype=np.int64))
