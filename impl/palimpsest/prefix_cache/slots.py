"""The slot table: who owns each slot, and what can be read of each key there.

All arrays are indexed by slot (`block_id * block_size + offset`) and guarded by the manager's state
lock. A slot's *tenant* is a generation: one life of a request, from its first save to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

ABSENT, IN_TRANSIT, COMMITTED = 0, 1, 2
NO_TENANT = 0
NO_TASK = 0
NO_SLOTS: np.ndarray = np.empty(0, dtype=np.int64)

IntArray = np.ndarray  # of int64, over rows or slots


class KeySlots:
    """What is known of one key on each slot. The tensors and the arrays share their memory."""

    __slots__ = ("slot_version", "state", "status", "version", "writer")

    def __init__(self, num_slots: int) -> None:
        #: absent, in transit or committed; guarded by the state lock
        self.state = torch.zeros(num_slots, dtype=torch.int8)
        self.status: np.ndarray = self.state.numpy()
        #: how often the (slot, key) was claimed or lost; guarded by the state lock
        self.slot_version = torch.zeros(num_slots, dtype=torch.int64)
        self.version: IntArray = self.slot_version.numpy()
        #: the task whose row may still land there, or NO_TASK; guarded by the state lock
        self.writer: IntArray = np.zeros(num_slots, dtype=np.int64)


class Takeover(NamedTuple):
    """Rows that a task in transit lost to a new claim."""

    tid: int
    key: str
    slots: IntArray


class SlotTable:
    """Tenants, versions and status of every (slot, key)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_slots, self._block_size = num_blocks * block_size, block_size
        #: the generation that last claimed the slot; guarded by the state lock
        self.tenant: IntArray = np.zeros(self.num_slots, dtype=np.int64)
        #: guarded by the state lock
        self._keys: dict[str, KeySlots] = {}
        self._mark = np.zeros(self.num_slots, dtype=bool)
        #: the generation that last claimed a slot of the block; guarded by the state lock
        self._block_tenant: IntArray = np.zeros(num_blocks, dtype=np.int64)

    @property
    def keys(self) -> list[str]:
        """The keys that have a layout, in the order in which they were first saved."""
        return list(self._keys)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Per key, the status of every slot (2 is committed)."""
        return {key: table.state for key, table in self._keys.items()}

    def add_key(self, key: str) -> None:
        """Start to keep track of `key`; nothing of it can be read yet."""
        self._keys.setdefault(key, KeySlots(self.num_slots))

    def get_slot_status(self, key: str) -> KeySlots:
        """The arrays of `key`."""
        return self._keys[key]

    def claim(self, slots: IntArray, tenants: IntArray, writers: Mapping[str, IntArray]) -> list[Takeover]:
        """Take distinct `slots` for `tenants` and let `writers[key]` (task ids) write them.

        A slot that changes its tenant loses the rows of every key, also of keys not written now. Gives
        the rows that tasks in transit lost to another task.
        """
        changed = NO_SLOTS if len(writers) == len(self._keys) else slots[self.tenant[slots] != tenants]
        self.tenant[slots] = tenants
        lost: list[Takeover] = []
        for key, table in self._keys.items():
            tids = writers.get(key)
            if tids is not None:
                _collect_lost(lost, key, slots, table.writer[slots], tids)
                table.version[slots] += 1
                table.status[slots] = IN_TRANSIT
                table.writer[slots] = tids
            elif changed.size:
                _collect_lost(lost, key, changed, table.writer[changed], NO_TASK)
                table.version[changed] += 1
                table.status[changed] = ABSENT
                table.writer[changed] = NO_TASK
        return lost

    def block_mates(self, slots: IntArray, tenants: IntArray) -> IntArray:
        """The other slots of the blocks that `slots` take over, which still have an earlier tenant: a block
        changes hands as a whole. The blocks are the new tenants' from here on."""
        blocks = slots // self._block_size
        new = self._block_tenant[blocks] != tenants
        if not np.count_nonzero(new):
            return NO_SLOTS
        taken = blocks[new]
        self._block_tenant[taken] = tenants[new]
        mates = self.slots_of(np.unique(taken))
        self._mark[slots] = True
        others = mates[~self._mark[mates]]
        self._mark[slots] = False
        owner = self.tenant[others]
        found: IntArray = others[(owner != NO_TENANT) & (owner != self._block_tenant[others // self._block_size])]
        return found

    def retire_blocks(self, blocks: IntArray) -> IntArray:
        """Note that blocks have no tenant; gives their slots, which are to be retired."""
        self._block_tenant[blocks] = NO_TENANT
        return self.slots_of(blocks)

    def slots_of(self, blocks: IntArray) -> IntArray:
        """The slots of whole blocks, in order."""
        slots: IntArray = (blocks[:, None] * self._block_size + np.arange(self._block_size)).ravel()
        return slots

    def retire(self, slots: IntArray) -> list[Takeover]:
        """Let nothing be planned on the rows of any key at `slots`: their block has a new owner, who has not
        written them yet. Versions stay, since reads planned before may still copy the rows out. Gives the
        rows whose tasks are in transit."""
        self.tenant[slots] = NO_TENANT
        lost: list[Takeover] = []
        for key, table in self._keys.items():
            _collect_lost(lost, key, slots, table.writer[slots], NO_TASK)
            table.status[slots] = ABSENT
        return lost

    def forget_writer(self, key: str, slots: IntArray) -> None:
        """Note that no task will land a row of `key` at `slots` any more."""
        self._keys[key].writer[slots] = NO_TASK

    def commit(self, key: str, slots: IntArray, tids: IntArray) -> None:
        """Make the rows that `tids` wrote readable where those tasks still own the slot."""
        table = self._keys[key]
        landed = _those(slots, table.writer[slots] == tids)
        table.writer[landed] = NO_TASK
        table.status[_those(landed, table.status[landed] == IN_TRANSIT)] = COMMITTED

    def reset(self) -> None:
        """Forget every row of every key; versions grow, so that reads planned before can tell."""
        self.tenant[:] = NO_TENANT
        self._block_tenant[:] = NO_TENANT
        for table in self._keys.values():
            table.version += 1
            table.status[:] = ABSENT
            table.writer[:] = NO_TASK

    def overlaps(self, groups: list[IntArray], slots: IntArray) -> list[bool]:
        """For each group of slots, whether it shares one with `slots`."""
        if not groups:
            return []
        self._mark[slots] = True
        found = [bool(self._mark[group].any()) for group in groups]
        self._mark[slots] = False
        return found

    def snapshot(self, slots: IntArray) -> dict[str, object]:
        """A copy of all that is known of `slots`, for a trace event."""
        return {
            "slots": slots.copy(),
            "tenant": self.tenant[slots],
            "keys": {
                key: {"version": t.version[slots], "status": t.status[slots], "writer": t.writer[slots]}
                for key, t in self._keys.items()
            },
        }

    def check(self) -> list[str]:
        """What contradicts itself: rows in transit without a task, or committed ones with a task."""
        return [
            f"key {key}: {wrong} slots are in transit without a task, or committed with one"
            for key, t in self._keys.items()
            if (
                wrong := int(
                    (
                        ((t.status == IN_TRANSIT) & (t.writer == NO_TASK))
                        | ((t.status == COMMITTED) & (t.writer != NO_TASK))
                    ).sum()
                )
            )
        ]


def _those(slots: IntArray, which: np.ndarray) -> IntArray:
    """`slots[which]`; mostly that is all of them."""
    return slots if np.count_nonzero(which) == slots.size else slots[which]


def _collect_lost(lost: list[Takeover], key: str, slots: IntArray, before: IntArray, after: IntArray | int) -> None:
    if not np.count_nonzero(before):
        return
    taken = (before != NO_TASK) & (before != after)
    lost += [Takeover(int(tid), key, slots[taken & (before == tid)]) for tid in np.unique(before[taken])]
