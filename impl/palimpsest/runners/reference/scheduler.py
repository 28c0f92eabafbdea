"""Continuous batching: chunked prefill, prefix hits, preemption by recomputation, aborts.

What the scheduler does at the edges is what makes a cache of its outputs hard:

- Blocks of a finished or aborted request are free at once and can be reused by the next step. The cache
  hears of the end one step after that (`NOTICE_DELAY`).
- A preempted request gives its blocks back in the step that preempts it, which says so to the cache. It is
  admitted again later, as a new request and a new generation, with whatever prefix it still hits.
- A block can be hit from the moment it is allocated, also by a request of the same step. A hit is of whole
  blocks and leaves at least one token to compute.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable

from palimpsest.runners.reference.blocks import BlockManager
from palimpsest.runners.reference.plan import Counts, NewRequest, Share, StepPlan
from palimpsest.runners.reference.requests import Request, Sequence

#: steps from the first that can reuse a request's blocks to the one that reports its end
NOTICE_DELAY = 1


class Scheduler:
    """Decides what each step computes. At most `max_sequences` run, and `max_tokens` are computed a step."""

    def __init__(
        self, requests: Iterable[Request], blocks: BlockManager, *, max_sequences: int, max_tokens: int
    ) -> None:
        self.blocks, self.max_sequences, self.max_tokens = blocks, max_sequences, max_tokens
        self._arrivals = deque(sorted(requests, key=lambda request: request.arrival))
        self._waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        #: (step that reports it, request id)
        self._notices: deque[tuple[int, str]] = deque()
        self._ended: list[Sequence] = []
        self.counts = Counts(requests=len(self._arrivals))
        self._check_sizes()

    def _check_sizes(self) -> None:
        capacity = self.blocks.num_blocks * self.blocks.block_size
        for request in self._arrivals:
            if not request.prompt or request.max_tokens < 1:
                raise ValueError(f"request {request.req_id!r} has no prompt or asks for no token")
            if request.total_tokens > capacity:
                total = request.total_tokens
                raise ValueError(f"request {request.req_id!r} takes {total} tokens, and the KV blocks hold {capacity}")

    @property
    def done(self) -> bool:
        """Whether every request has ended and was reported."""
        return not (self._arrivals or self._waiting or self.running or self._notices)

    def take_ended(self) -> list[Sequence]:
        """The sequences that ended since the last call; none of them is in a later step."""
        ended, self._ended = self._ended, []
        return ended

    def schedule(self) -> StepPlan:
        """Plan the next step; it may be idle (no shares)."""
        self.counts.steps += 1
        plan = StepPlan()
        self._take_notices(plan)
        self._abort_departed()
        self._take_arrivals()
        self._schedule_running(plan)
        if not plan.preempted_req_ids:
            self._admit(plan)
        self.counts.tokens += plan.num_tokens
        return plan

    def update(self, plan: StepPlan, next_tokens: dict[str, int]) -> None:
        """Take in a step that was computed: `next_tokens` of the requests whose tokens are all computed."""
        for share in plan.shares:
            sequence = share.sequence
            sequence.computed = share.stop
            if share.stop == len(sequence.tokens):
                sequence.tokens.append(next_tokens[share.req_id])
            if sequence.finished:
                self.counts.finished += 1
                self._end(sequence, self.counts.steps + 1)

    # ---------------------------------------------------------------- ends

    def _take_notices(self, plan: StepPlan) -> None:
        while self._notices and self._notices[0][0] <= self.counts.steps:
            plan.finished_req_ids.add(self._notices.popleft()[1])

    def _end(self, sequence: Sequence, reusable_from: int) -> None:
        """Free its blocks, for step `reusable_from` and on; the cache hears of it `NOTICE_DELAY` later."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)
        self._notices.append((reusable_from + NOTICE_DELAY, sequence.req_id))
        self._ended.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.blocks.free(sequence.blocks)
        sequence.blocks = []

    def _abort_departed(self) -> None:
        for sequence in [*self.running, *self._waiting]:
            leaves_after = sequence.request.leaves_after
            if leaves_after and sequence.steps >= leaves_after[0]:
                sequence.aborted = True
                self.counts.aborted += 1
                self._end(sequence, self.counts.steps)
                self._come_back(sequence.request)

    def _come_back(self, request: Request) -> None:
        again = dataclasses.replace(request, arrival=self._notices[-1][0], leaves_after=request.leaves_after[1:])
        later = [*self._arrivals, again]
        self._arrivals = deque(sorted(later, key=lambda request: request.arrival))

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].arrival <= self.counts.steps:
            self._waiting.append(Sequence(self._arrivals.popleft()))

    # ---------------------------------------------------------------- shares

    def _schedule_running(self, plan: StepPlan) -> None:
        for sequence in list(self.running):
            count = min(len(sequence.tokens) - sequence.computed, self.max_tokens - plan.num_tokens)
            if count < 1 or sequence not in self.running:
                continue
            if self._make_room(plan, sequence, self._new_blocks(sequence, count)):
                self._schedule(plan, sequence, count, new=False)

    def _new_blocks(self, sequence: Sequence, count: int) -> int:
        size = self.blocks.block_size
        return -(-(sequence.computed + count) // size) - len(sequence.blocks)

    def _make_room(self, plan: StepPlan, sequence: Sequence, needed: int) -> bool:
        """Preempt the latest requests until `needed` blocks are free; False when `sequence` itself went."""
        while self.blocks.free_count < needed:
            victim = self.running[-1]
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, plan: StepPlan, victim: Sequence) -> None:
        self.running.remove(victim)
        self._release(victim)
        victim.computed = 0
        self._waiting.appendleft(victim)
        plan.preempted_req_ids.add(victim.req_id)
        self.counts.preemptions += 1

    def _admit(self, plan: StepPlan) -> None:
        while self._waiting and len(self.running) < self.max_sequences and plan.num_tokens < self.max_tokens:
            if not self._admit_one(plan, self._waiting[0]):
                return
            self.running.append(self._waiting.popleft())

    def _admit_one(self, plan: StepPlan, sequence: Sequence) -> bool:
        size = self.blocks.block_size
        limit = (len(sequence.tokens) - 1) // size
        hit = self.blocks.match(sequence.block_hashes(size), limit)
        sequence.computed = len(hit) * size
        count = min(len(sequence.tokens) - sequence.computed, self.max_tokens - plan.num_tokens)
        sequence.blocks = list(hit)
        if not self.blocks.fits(hit, self._new_blocks(sequence, count)):
            sequence.blocks, sequence.computed = [], 0
            return False
        self.blocks.hold(hit)
        self.counts.generations += 1
        sequence.generation = self.counts.generations
        self._count_hit(sequence)
        self._schedule(plan, sequence, count, new=True)
        return True

    def _count_hit(self, sequence: Sequence) -> None:
        if sequence.computed == 0:
            return
        slots = self.blocks.slots(sequence.blocks, 0, sequence.computed)
        self.counts.hits += 1
        self.counts.multi_block_hits += len(sequence.blocks) > 1
        self.counts.same_step_hits += bool((self.blocks.written_at[slots] == self.counts.steps).any())

    def _schedule(self, plan: StepPlan, sequence: Sequence, count: int, *, new: bool) -> None:
        sequence.blocks += self.blocks.allocate(self._new_blocks(sequence, count))
        start, stop = sequence.computed, sequence.computed + count
        slots = self.blocks.slots(sequence.blocks, 0, stop)
        self.blocks.record_write(slots[start:], sequence.generation, self.counts.steps)
        self._publish(sequence, start, stop)
        writers = self.blocks.writers[slots[: start if new else 0]].copy()
        plan.shares.append(Share(sequence, sequence.generation, start, stop, slots, writers, new))
        sequence.steps += 1
        if new:
            plan.scheduled_new_reqs.append(NewRequest(sequence.req_id, start, [list(sequence.blocks)]))

    def _publish(self, sequence: Sequence, start: int, stop: int) -> None:
        size = self.blocks.block_size
        hashes = sequence.block_hashes(size)
        for number in range(start // size, stop // size):
            self.blocks.publish(sequence.blocks[number], hashes[number])
