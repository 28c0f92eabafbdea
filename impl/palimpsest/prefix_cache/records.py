"""The rows that steps have to write: a step's rows stay one record, and a task's share of it is a chunk."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch

IntArray = np.ndarray
Rows = dict[str, torch.Tensor]


class PageEvent(Protocol):
    """Tells when a step's device copies have landed."""

    def synchronize(self) -> None: ...


class BudgetTicket:
    """The charge of one device clone against the byte budget, given back with its last task."""

    __slots__ = ("holders", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        #: the tasks that keep the clone; guarded by the task lock
        self.holders: set[int] = set()


class WriteRecord:
    """The rows that one step writes with one schedule, as the device and the host have them."""

    __slots__ = ("at", "budget", "host", "ready", "serial", "slots_cpu", "tensors")

    _SERIALS = itertools.count(1)

    def __init__(
        self,
        slots_cpu: torch.Tensor,
        tensors: Rows,
        host: Rows | None = None,
        budget: BudgetTicket | None = None,
    ) -> None:
        self.slots_cpu, self.tensors, self.host, self.budget = slots_cpu, tensors, host, budget
        #: the slots as an array, which shares its memory with the tensor
        self.at: IntArray = slots_cpu.numpy()
        #: records in the order of their steps
        self.serial = next(self._SERIALS)
        #: tells when device rows may be read by another stream; None on the host
        self.ready: torch.Event | None = None

    @property
    def at_hand(self) -> Rows:
        """The rows, on the host where they are there, else where they were frozen."""
        return self.tensors if self.host is None else self.host


class WriteChunk:
    """The rows `start` to `stop` of a record: what one task writes of one step."""

    __slots__ = ("record", "start", "stop")

    def __init__(
        self,
        *,
        slots_cpu: torch.Tensor,
        tensors: Rows,
        host: Rows | None = None,
        budget: BudgetTicket | None = None,
    ) -> None:
        self.record = WriteRecord(slots_cpu, tensors, host, budget)
        self.start, self.stop = 0, slots_cpu.numel()

    @classmethod
    def of(cls, record: WriteRecord, start: int, stop: int) -> WriteChunk:
        """A share of `record`, without copying."""
        chunk = cls.__new__(cls)
        chunk.record, chunk.start, chunk.stop = record, start, stop
        return chunk

    @property
    def slots_cpu(self) -> torch.Tensor:
        """The slots of these rows, int64 on the host."""
        return self.record.slots_cpu[self.start : self.stop]

    @property
    def tensors(self) -> Rows:
        """The rows as they were frozen at save, by key."""
        return self._share(self.record.tensors)

    @property
    def host(self) -> Rows | None:
        """The rows on the host, by key; None until they are there."""
        return None if self.record.host is None else self._share(self.record.host)

    @host.setter
    def host(self, rows: Rows) -> None:
        self.record.host = rows

    @property
    def budget(self) -> BudgetTicket | None:
        """The charge of the clone that these rows are a part of."""
        return self.record.budget

    def _share(self, rows: Mapping[str, torch.Tensor]) -> Rows:
        return {key: value[self.start : self.stop] for key, value in rows.items()}


#: a record and the range of its rows that one task writes
Part = tuple[WriteRecord, int, int]


#: The same rows of several records: what one task writes of consecutive steps of an unchanged batch. The list
#: of records is shared by the batch's tasks and grows with each step; the numbers are a range of rows.
Run = tuple[list[WriteRecord], int, int]


class FrozenTask(NamedTuple):
    """A task's rows as they were when a read was planned on them."""

    tid: int
    parts: tuple[Part, ...]
    step_d2h_event: PageEvent | None


class KeyWrite(NamedTuple):
    """Rows of one key to write into the pool, and the task of each."""

    key: str
    slots: torch.Tensor
    #: the slots as an array
    at: IntArray
    rows: torch.Tensor
    tids: IntArray


class PoolWrite(NamedTuple):
    """One pool write of a set of tasks: one entry per key."""

    tids: tuple[int, ...]
    writes: list[KeyWrite]
