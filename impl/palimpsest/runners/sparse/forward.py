"""The forward of the sparse runner: the model's attention over mirrored pages."""

from __future__ import annotations

import numpy as np
import torch

from palimpsest.host_mirror import HostMirror
from palimpsest.runners.sparse.judge import RowJudge, identity
from palimpsest.runners.sparse.model import IDENTITY, IntArray, PlainRun, SparseDecoder, choose
from palimpsest.runners.sparse.plan import Share, SparsePlan
from palimpsest.runners.sparse.requests import Sequence


class Forward:
    """Runs the model's layers over a batch. It keeps the index keys of each request, which stay on the device."""

    def __init__(self, model: SparseDecoder, mirror: HostMirror, judge: RowJudge, max_tokens: int) -> None:
        self._model, self._mirror, self._judge, self._max_tokens = model, mirror, judge, max_tokens
        #: index keys by request number and leader, [tokens, index]
        self._keys: dict[int, dict[int, torch.Tensor]] = {}
        self._shares: list[Share] = []
        self._step = 0
        #: rows of the batch that this pass runs over
        self._rows = np.empty(0, dtype=np.int64)
        #: positions that the present leader selected, [rows, top_k]
        self._selected = np.empty((0, 0), dtype=np.int64)

    def arrive(self, sequence: Sequence, plain: PlainRun) -> None:
        """A request came, with index keys of rows that were computed elsewhere."""
        if sequence.number not in self._keys:
            made: dict[int, torch.Tensor] = {}
            for layer, keys in plain.keys.items():
                made[layer] = keys.new_zeros((self._max_tokens, keys.shape[1]))
                made[layer][: sequence.computed] = keys[: sequence.computed]
            self._keys[sequence.number] = made

    def target(self, plan: SparsePlan) -> torch.Tensor:
        """Hidden states of the plan's rows."""
        self._shares, self._step = plan.shares, plan.number
        self._rows = np.arange(sum(len(share.tokens) for share in plan.shares))
        device = self._model.device
        tokens = torch.tensor([token for share in plan.shares for token in share.tokens], device=device)
        positions = torch.tensor([at for share in plan.shares for at in range(share.start, share.stop)], device=device)
        return self._model.target(tokens, positions, self._attend)

    def draft(self, hidden: torch.Tensor, kept: IntArray) -> torch.Tensor:
        """The draft layer over the rows `kept` of the batch."""
        self._rows = kept
        return self._model.draft(hidden[torch.from_numpy(kept).to(hidden.device)], self._attend)

    def _attend(
        self, layer: int, latent: torch.Tensor, key: torch.Tensor | None, query: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        placed = [(share, at) for share in self._shares for at in range(share.start, share.stop)]
        placed = [placed[row] for row in self._rows]
        writers = [(share.sequence.number, self._step) for share, _ in placed]
        tags = identity(writers, [at for _, at in placed], layer).to(latent.device)
        self._mirror.write(layer, torch.cat([latent, tags], dim=1))
        if key is not None and query is not None:
            self._selected = self._choose(layer, placed, key, query)
            self._mirror.select(layer, self._selected)
        rows = self._mirror.gather(layer)
        there = self._selected >= 0
        mask = torch.from_numpy(there).to(latent.device)
        self._judge.gathered(layer, rows[mask], self._expected(layer, placed), f"step {self._step}")
        return rows[..., :-IDENTITY], mask

    def _choose(self, layer: int, placed: list[tuple[Share, int]], key: torch.Tensor, query: torch.Tensor) -> IntArray:
        for row, (share, at) in enumerate(placed):
            self._keys[share.sequence.number][layer][at] = key[row]
        lines = []
        for row, (share, at) in enumerate(placed):
            scores = query[row : row + 1] @ self._keys[share.sequence.number][layer][: at + 1].T
            visible = torch.tensor([at + 1], device=scores.device)
            lines.append(choose(scores, visible, self._model.size.top_k).cpu().numpy()[0])
        return np.stack(lines)

    def _expected(self, layer: int, placed: list[tuple[Share, int]]) -> torch.Tensor:
        """Identities of the selected rows: those of accepted rows, and of this step's."""
        writers: list[tuple[int, int]] = []
        positions: list[int] = []
        for (share, _), line in zip(placed, self._selected, strict=True):
            for at in line[line >= 0].tolist():
                mine = at >= share.start
                writers.append((share.sequence.number, self._step) if mine else share.sequence.writers[at])
                positions.append(at)
        return identity(writers, positions, layer)
