"""Hot rows: rows of pages that left the device, fetched from the host because attention selected them.

Each request state has a buffer of `capacity` rows in every layer. Which row lies where is the same for the layers
of an index group, because they select the same positions; it is planned once, by the leader. The row that was
selected longest ago makes room. A row is forgotten when it is written again, or when its block changes hands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror.rows import IntArray


class PageTables:
    """Where the pages of each request state lie: in one host block, and in one resident block of each source or in
    none. -1 is no block."""

    def __init__(self, num_states: int, max_pages: int, num_sources: int) -> None:
        self.host = np.full((num_states, max_pages), -1, dtype=np.int64)
        self.resident = np.full((num_sources, num_states, max_pages), -1, dtype=np.int64)

    def set_host(self, state: int, blocks: Iterable[int]) -> None:
        """The host blocks of a request; a request that is new in its state has no resident page yet."""
        self.host[state] = -1
        listed = list(blocks)
        self.host[state, : len(listed)] = listed

    def set_resident(self, state: int, page: int, blocks: tuple[int, ...] | None) -> None:
        """A page came to the resident `blocks`, or left the device."""
        self.resident[:, state, page] = -1 if blocks is None else blocks

    def clear(self, state: int) -> None:
        """The state has no request."""
        self.host[state], self.resident[:, state] = -1, -1


class Selection(NamedTuple):
    """Where the selected rows of a step lie: arrays of [rows, top_k] unless said otherwise."""

    #: line and page of each, and its row in the page; -1 where nothing is selected
    state: IntArray
    page: IntArray
    offset: IntArray
    #: index into the hot buffers as [states * capacity]; -1 for a row of a resident page
    hot: IntArray
    #: rows to be fetched first: host slots and where they go, one line each
    missing_slots: IntArray
    missing_hot: IntArray
    hits: int


class HotRowTable:
    """Which host slot lies in which place of each state's hot buffer. -1: none."""

    def __init__(self, num_states: int, capacity: int) -> None:
        self.capacity = capacity
        self.slots = np.full((num_states, capacity), -1, dtype=np.int64)
        self._used = np.zeros((num_states, capacity), dtype=np.int64)
        self._clock = 0

    def claim(self, state: int, wanted: IntArray) -> tuple[IntArray, IntArray]:
        """Places for the distinct host slots `wanted`, and which of them are not there yet (a mask). Those that are
        stay; the others take the places that were used longest ago. Raises `BadMirrorInputError` when more are
        wanted than there are places."""
        if wanted.size > self.capacity:
            raise BadMirrorInputError(
                f"{wanted.size} rows selected at once for state {state}, whose hot buffer has {self.capacity}"
            )
        self._clock += 1
        held = self.slots[state]
        order = np.argsort(held, kind="stable")
        at = np.minimum(np.searchsorted(held[order], wanted), self.capacity - 1)
        places = order[at]
        missing = held[places] != wanted
        self._used[state, places[~missing]] = self._clock
        age = np.where(held < 0, -1, self._used[state])
        places[missing] = np.argsort(age, kind="stable")[: int(missing.sum())]
        self._used[state, places] = self._clock
        self.slots[state, places] = wanted
        return places, missing

    def forget_rows(self, states: IntArray, slots: IntArray) -> None:
        """The rows at host `slots` were written anew by the requests in `states`, one for one."""
        for state in np.flatnonzero((self.slots >= 0).any(axis=1)).tolist():
            self._forget(state, np.isin(self.slots[state], slots[states == state]))

    def forget_blocks(self, blocks: Iterable[int], block_rows: int) -> None:
        """Host blocks changed hands: no state has their rows any more. All states, since a request that is not in
        the batch may be given one of the blocks back later."""
        gone = (self.slots >= 0) & np.isin(self.slots // block_rows, list(blocks))
        self.slots[gone] = -1

    def forget_state(self, state: int) -> None:
        """The state has another request."""
        self.slots[state] = -1

    def _forget(self, state: int, mask: np.ndarray[Any, Any]) -> None:
        self.slots[state, mask] = -1


def select(table: HotRowTable, pages: PageTables, states: IntArray, positions: IntArray, block_rows: int) -> Selection:
    """Find the rows at logical `positions` [rows, top_k] of the requests in `states` [rows], and plan what must be
    fetched. Raises `BadMirrorInputError` when a position lies on no page at all."""
    valid = positions >= 0
    state = np.broadcast_to(states[:, None], positions.shape)
    page, offset = np.where(valid, positions // block_rows, -1), np.where(valid, positions % block_rows, -1)
    resident = valid & (pages.resident[0, state, page] >= 0)
    host_block = np.where(valid, pages.host[state, page], -1)
    if bool((valid & ~resident & (host_block < 0)).any()):
        row, column = np.argwhere(valid & ~resident & (host_block < 0))[0].tolist()
        raise BadMirrorInputError(
            f"position {positions[row, column]} of state {states[row]} is selected, and lies in no block"
        )
    slots = np.where(valid & ~resident, host_block * block_rows + offset, -1)
    hot = np.full(positions.shape, -1, dtype=np.int64)
    missing_slots: list[IntArray] = []
    missing_hot: list[IntArray] = []
    hits = 0
    for line in np.unique(states).tolist():
        mine = slots * (states == line)[:, None] - (states != line)[:, None]
        wanted = np.unique(mine[mine >= 0])
        places, missing = table.claim(line, wanted)
        chosen = mine >= 0
        hot[chosen] = line * table.capacity + places[np.searchsorted(wanted, mine[chosen])]
        missing_slots.append(wanted[missing])
        missing_hot.append(line * table.capacity + places[missing])
        hits += int((~missing).sum())
    none = np.empty(0, dtype=np.int64)
    return Selection(
        np.asarray(state), page, offset, hot,
        np.concatenate([none, *missing_slots]), np.concatenate([none, *missing_hot]), hits,
    )  # fmt: skip


def fetch_rows(selection: Selection, host: torch.Tensor, hot: torch.Tensor) -> None:
    """Copy the missing rows of one layer from `host` [slots, width] to `hot` [states, capacity, width], on the host."""
    if selection.missing_slots.size:
        places = torch.from_numpy(selection.missing_hot)
        hot.flatten(0, 1)[places] = host[torch.from_numpy(selection.missing_slots)]


def gather_rows(
    selection: Selection, resident_blocks: IntArray, resident: torch.Tensor, hot: torch.Tensor
) -> torch.Tensor:
    """The selected rows of one layer, [rows, top_k, width]; zeros where nothing is selected.

    `resident_blocks` [states, pages] is the page table of the layer's source, `resident` [blocks, rows, width].
    """
    device = resident.device
    block = resident_blocks[selection.state, selection.page]
    out = resident.new_zeros((*selection.hot.shape, resident.shape[2]))
    from_hot = selection.hot >= 0
    from_page = (selection.page >= 0) & ~from_hot
    where = torch.from_numpy(from_page).to(device)
    out[where] = resident[_index(block[from_page], device), _index(selection.offset[from_page], device)]
    where = torch.from_numpy(from_hot).to(device)
    out[where] = hot.flatten(0, 1)[_index(selection.hot[from_hot], device)]
    return out


def _index(values: IntArray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
