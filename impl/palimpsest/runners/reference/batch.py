"""The runner's persistent batch: the arrays that a group view turns into slots, as a real runner has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from palimpsest.runners.reference.plan import StepPlan


@dataclass
class HostTable:
    """A block table's host side: `cpu` has one line of block ids per request."""

    cpu: npt.NDArray[np.int32]


class BlockTable:
    """Block ids of the batch's requests for the one KV cache group."""

    def __init__(self, max_sequences: int, max_blocks: int) -> None:
        self.block_table = HostTable(np.zeros((max_sequences, max_blocks), dtype=np.int32))


class InputBatch:
    """What `FullAttentionGroupView` reads; overwritten in place at each step."""

    def __init__(self, max_sequences: int, max_blocks: int) -> None:
        self.req_ids: list[str] = []
        self.req_id_to_index: dict[str, int] = {}
        self.num_computed_tokens_cpu = np.zeros(max_sequences, dtype=np.int32)
        self.block_table = [BlockTable(max_sequences, max_blocks)]

    def load(self, plan: StepPlan) -> None:
        """Become the batch of `plan`."""
        self.req_ids = [share.req_id for share in plan.shares]
        self.req_id_to_index = {req_id: line for line, req_id in enumerate(self.req_ids)}
        table = self.block_table[0].block_table.cpu
        for line, share in enumerate(plan.shares):
            self.num_computed_tokens_cpu[line] = share.start
            blocks = share.sequence.blocks
            table[line, : len(blocks)] = blocks
