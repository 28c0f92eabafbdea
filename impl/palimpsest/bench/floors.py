"""The floor: the copies of a step's bytes that no cache can do without, as plain torch calls.

Into buffers that were allocated and touched before, one call per key, on the same bytes and slots as the cache:

- save: a copy off the live buffers (the row must outlive the next forward), and a write into the pool. Of a deferred
  key: two copies, one for the later write and one to deliver.
- deliver: a copy into the caller's buffer; of a hit, a gather out of the pool into it and a copy of the new rows.
- reuse: a gather of the rows that a pending read needs before they are overwritten.
- finish: one write of all rows of a deferred key.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import torch

from palimpsest.bench.rows import LiveBuffers
from palimpsest.bench.steps import Step

now = time.perf_counter_ns

Rows = dict[str, torch.Tensor]


class Floor:
    """The copies alone, for a pool of `num_slots`, steps of at most `rows`, and outputs of at most `out_rows`.

    Each method gives the nanoseconds that its copies took.
    """

    def __init__(
        self, live: LiveBuffers, num_slots: int, rows: int, out_rows: int, deferred: Collection[str] = ()
    ) -> None:
        self._live, self._deferred = live.buffers, frozenset(deferred)
        self.pool = self._touched(num_slots)
        #: the rows of the last two steps, which may both wait for their delivery
        self._frozen = [self._touched(rows), self._touched(rows)]
        self._frozen_for_write = self._touched(rows)
        self._out = self._touched(out_rows)
        self._preserved = self._touched(out_rows)

    def _touched(self, rows: int) -> Rows:
        return {key: torch.empty(rows, *live.shape[1:], dtype=live.dtype).fill_(0) for key, live in self._live.items()}

    def save(self, step: Step, page: int = 0, preserve: torch.Tensor | None = None) -> int:
        """Freeze the live rows and write them; before that, gather the rows on the slots of `preserve`."""
        begun = now()
        if preserve is not None:
            for key, pool in self.pool.items():
                torch.index_select(pool, 0, preserve, out=self._preserved[key][: len(preserve)])
        for key, live in self._live.items():
            rows = live[: step.count]
            self._frozen[page][key][: step.count].copy_(rows)
            if key in self._deferred:
                self._frozen_for_write[key][: step.count].copy_(rows)
            else:
                self.pool[key].index_copy_(0, step.slots, rows)
        return now() - begun

    def deliver(self, step: Step, page: int = 0, *, preserved: bool = False) -> int:
        """Put the step's outputs together; `preserved` takes the prefixes from where `save` gathered them."""
        begun = now()
        for key, out in self._out.items():
            frozen = self._frozen[page][key]
            if step.delivered is step.computed:
                out[: step.count].copy_(frozen[: step.count])
            else:
                self._merge(step, key, out, frozen, preserved)
        return now() - begun

    def _merge(self, step: Step, key: str, out: torch.Tensor, frozen: torch.Tensor, preserved: bool) -> None:
        at = taken = gathered = 0
        for part, slots in zip(step.parts, step.hit_slots, strict=True):
            prefix = out[at : at + part.hit]
            if preserved:
                prefix.copy_(self._preserved[key][gathered : gathered + part.hit])
                gathered += part.hit
            else:
                torch.index_select(self.pool[key], 0, slots, out=prefix)
            at += part.hit
            out[at : at + part.count].copy_(frozen[taken : taken + part.count])
            at, taken = at + part.count, taken + part.count

    def finish(self, key: str, slots: torch.Tensor, rows: torch.Tensor) -> int:
        """Write all rows of a deferred key at once."""
        begun = now()
        self.pool[key].index_copy_(0, slots, rows)
        return now() - begun

    def outputs(self, key: str, step: Step) -> torch.Tensor:
        """What `deliver` put together last, request by request."""
        return self._out[key][: len(step.delivered.numbers)]
