"""What the sparse runner computes in each step, and where its pages lie meanwhile.

A request's rows all lie in host blocks; the device has the page that is being written and whatever fits besides.
Where a page is needed, first a *clean* one goes (its rows are acknowledged to be on the host), then a whole request
is preempted: its pages drain to the host, it gives them back, and comes back later from its host rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from palimpsest.host_mirror import PageResidency, SparseKVPageTransfer
from palimpsest.kv_cache import KVCacheBlockCopy
from palimpsest.runners.sparse.blocks import HostBlocks, ResidentBlocks
from palimpsest.runners.sparse.plan import Share, SparsePlan
from palimpsest.runners.sparse.requests import Phase, Sequence, SparseRequest


@dataclass
class Counts:
    """What happened."""

    steps: int = 0
    idle_steps: int = 0
    rows: int = 0
    rejected: int = 0
    preemptions: int = 0
    spills: int = 0
    restores: int = 0
    imports: int = 0
    forks: int = 0
    transfers: int = 0
    acknowledged: int = 0
    recycled: int = 0


@dataclass(frozen=True)
class Limits:
    """Sizes that the scheduler keeps to."""

    block_rows: int
    max_requests: int
    max_rows: int
    chunk: int
    #: rows of a request with pages off the device that one step may compute
    sparse_chunk: int
    draft_tokens: int


#: guesses the tokens behind those of a sequence, at most so many
Propose = Callable[[Sequence, int], list[int]]


class SparseScheduler:
    """Decides step after step. `propose` guesses draft tokens."""

    def __init__(
        self,
        requests: Iterable[SparseRequest],
        limits: Limits,
        host: HostBlocks,
        resident: ResidentBlocks,
        propose: Propose,
    ) -> None:
        self.limits, self.host, self.resident, self._propose = limits, host, resident, propose
        listed = sorted(requests, key=lambda request: request.arrival)
        self.sequences = [Sequence(request, number + 1, list(request.prompt)) for number, request in enumerate(listed)]
        self._states = deque(range(limits.max_requests))
        self.counts = Counts()
        #: page of each transfer that is not acknowledged yet, and whether it came from the host
        self._moving: dict[int, tuple[Sequence, int, bool]] = {}
        self._transfers = 0
        self._plan = SparsePlan(0)

    @property
    def done(self) -> bool:
        """Whether every request has ended and nothing is on its way."""
        return not self._moving and all(sequence.phase is Phase.DONE for sequence in self.sequences)

    def in_phase(self, phase: Phase) -> list[Sequence]:
        """The sequences that are in a phase, in the order of their arrival."""
        return [sequence for sequence in self.sequences if sequence.phase is phase]

    def schedule(self) -> SparsePlan:
        """The next step; without shares it is idle."""
        self.counts.steps += 1
        self._plan = SparsePlan(self.counts.steps)
        for sequence in self.in_phase(Phase.DRAINING):
            self._give_back_drained(sequence)
        for sequence in self.in_phase(Phase.RUNNING):
            if sequence.to_be_preempted:
                sequence.preempted += 1
                self._preempt(sequence)
        self._admit()
        for sequence in self.in_phase(Phase.RUNNING):
            room = self.limits.max_rows - sum(len(share.tokens) for share in self._plan.shares)
            if sequence.phase is Phase.RUNNING and room > self.limits.draft_tokens:
                self._schedule(sequence, room)
        self._move_full_pages()
        self.counts.idle_steps += not self._plan.shares
        return self._plan

    # ------------------------------------------------------------ requests

    def _admit(self) -> None:
        for sequence in self.in_phase(Phase.WAITING):
            if sequence.request.arrival > self.counts.steps or not self._states:
                return
            if not self.resident.free_count:
                return
            if not sequence.begun and not self._begin(sequence):
                return
            sequence.state = self._states.popleft()
            sequence.phase = Phase.RUNNING
            self._plan.arrived.append((sequence.state, sequence))

    def _begin(self, sequence: Sequence) -> bool:
        """Get the host blocks that a new request begins with; False when it has to wait for its donor."""
        rows = self.limits.block_rows
        if sequence.request.forks is not None and not self._fork(sequence, *sequence.request.forks):
            return False
        if sequence.request.imported:
            count = sequence.request.imported
            sequence.host_blocks = [self._new_host_block() for _ in range(-(-count // rows))]
            sequence.accept(0, count)
            sequence.clean = set(range(-(-count // rows)))
            self._plan.imports.append(sequence)
            self.counts.imports += 1
        sequence.begun = True
        return True

    def _fork(self, sequence: Sequence, donor_id: str, count: int) -> bool:
        donor = next(each for each in self.sequences if each.req_id == donor_id)
        if donor.computed < count or donor.phase is Phase.DONE:
            return donor.phase is Phase.DONE  # too late to share: it computes all itself
        full, partial = divmod(count, self.limits.block_rows)
        for block in donor.host_blocks[:full]:
            self.host.share(block)
        sequence.host_blocks = donor.host_blocks[:full]
        if partial:
            sequence.host_blocks.append(self._new_host_block())
            self._plan.copies.append(KVCacheBlockCopy(donor.host_blocks[full], sequence.host_blocks[full]))
        sequence.writers, sequence.computed = donor.writers[:count], count
        sequence.clean = set(range(len(sequence.host_blocks)))
        self.counts.forks += 1
        return True

    def _new_host_block(self) -> int:
        block = self.host.allocate()
        self._plan.recycled.append(block)
        self.counts.recycled += 1
        return block

    # ------------------------------------------------------------ rows

    def _schedule(self, sequence: Sequence, room: int) -> None:
        start, size = sequence.computed, self.limits.block_rows
        sparse = any(page not in sequence.resident for page in range(start // size))
        most = min(room, self.limits.sparse_chunk if sparse else self.limits.chunk)
        tokens = sequence.tokens[start : start + most]
        drafts: list[int] = []
        if sequence.todo == 1:
            drafts = self._propose(sequence, min(self.limits.draft_tokens, most - 1))
        stop = start + len(tokens) + len(drafts)
        if self._place(sequence, range(start // size, (stop - 1) // size + 1)):
            self._plan.shares.append(Share(sequence, start, (*tokens, *drafts), len(drafts)))
            sequence.clean -= set(range(start // size, (stop - 1) // size + 1))
            self.counts.rows += stop - start

    def _place(self, sequence: Sequence, pages: range) -> bool:
        """Bring the pages that a step writes to the device; False when there is no room in this step."""
        absent = [page for page in pages if page not in sequence.resident]
        if not self._make_room(sequence, len(absent)):
            return False
        for page in absent:
            sequence.resident[page] = self.resident.allocate()
            self._tell(sequence, page)
            if page >= len(sequence.host_blocks):
                sequence.host_blocks.append(self._new_host_block())
            elif page * self.limits.block_rows < sequence.computed:
                self._transfer(sequence, page, restore=True)
        return True

    def _make_room(self, sequence: Sequence, needed: int) -> bool:
        dense = {id(share.sequence) for share in self._plan.shares if len(share.tokens) > self.limits.sparse_chunk}
        for other in self.sequences:
            for page in sorted(other.clean & set(other.resident)) if id(other) not in dense else ():
                if self.resident.free_count >= needed:
                    return True
                if page not in other.moving and not self._writes(other, page):
                    self._drop(other, page)
                    self.counts.spills += 1
        if self.resident.free_count >= needed:
            return True
        if not self.in_phase(Phase.DRAINING):
            self._preempt_last(sequence)
        return False

    def _preempt_last(self, wanting: Sequence) -> None:
        """Preempt the request that came last, unless this step computes some of it."""
        running = self.in_phase(Phase.RUNNING)
        if running == [wanting]:
            raise RuntimeError(f"one request alone does not fit into {self.resident.count} resident pages")
        if all(share.sequence is not running[-1] for share in self._plan.shares):
            self._preempt(running[-1])

    def _writes(self, sequence: Sequence, page: int) -> bool:
        """Whether the next rows of a sequence go to a page, or this step's do."""
        return page >= sequence.computed // self.limits.block_rows and sequence.phase is Phase.RUNNING

    def _preempt(self, victim: Sequence) -> None:
        victim.phase = Phase.DRAINING
        self.counts.preemptions += 1
        for page in sorted(victim.resident):
            if (
                page not in victim.clean
                and page not in victim.moving
                and page * self.limits.block_rows < victim.computed
            ):
                self._transfer(victim, page)
        self._give_back_drained(victim)

    def _give_back_drained(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.DRAINING and not sequence.moving:
            for page in sorted(sequence.resident):
                self._drop(sequence, page)
            self._leave(sequence, Phase.WAITING)

    def _leave(self, sequence: Sequence, phase: Phase) -> None:
        assert sequence.state is not None
        self._states.append(sequence.state)
        sequence.phase, sequence.state = phase, None

    # ------------------------------------------------------------ pages

    def _drop(self, sequence: Sequence, page: int) -> None:
        self.resident.release(sequence.resident.pop(page))
        self._tell(sequence, page)

    def _tell(self, sequence: Sequence, page: int) -> None:
        if sequence.state is not None:
            update = PageResidency(sequence.state, page, sequence.resident.get(page))
            self._plan.residency.setdefault(sequence.req_id, []).append(update)

    def _transfer(self, sequence: Sequence, page: int, *, after_forward: bool = False, restore: bool = False) -> None:
        self._transfers += 1
        blocks = sequence.resident[page]
        self._plan.transfers.append(
            SparseKVPageTransfer(self._transfers, sequence.host_blocks[page], blocks, after_forward, restore)
        )
        self._moving[self._transfers] = sequence, page, restore
        sequence.moving.add(page)
        self.counts.restores += restore
        self.counts.transfers += not restore

    def _move_full_pages(self) -> None:
        """Full pages go to the host: before the forward where they were full already, behind it where this step
        is sure to fill them."""
        size = self.limits.block_rows
        filled = {id(share.sequence): share.stop - share.drafts for share in self._plan.shares}
        for sequence in self.in_phase(Phase.RUNNING):
            for page in sorted(sequence.resident):
                stop = (page + 1) * size
                if stop > filled.get(id(sequence), sequence.computed) or page in sequence.clean | sequence.moving:
                    continue
                self._transfer(sequence, page, after_forward=stop > sequence.computed)

    # ------------------------------------------------------------ after the step

    def update(self, share: Share, accepted: int, next_tokens: list[int]) -> None:
        """`accepted` rows of a share stand; `next_tokens` are the tokens behind its known ones."""
        sequence = share.sequence
        sequence.accept(self._plan.number, accepted)
        sequence.tokens.extend(next_tokens)
        self.counts.rejected += len(share.tokens) - accepted
        if sequence.finished:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        for page in sorted(sequence.resident):
            self.resident.release(sequence.resident.pop(page))
        for block in sequence.host_blocks:
            self.host.release(block)
        sequence.host_blocks = []
        self._leave(sequence, Phase.DONE)

    def acknowledge(self, transfer_ids: Iterable[int]) -> list[tuple[Sequence, int]]:
        """Take in transfers that ended; gives the pages that are clean now. Raises `KeyError` for an id that is
        unknown, or was acknowledged before."""
        clean: list[tuple[Sequence, int]] = []
        for number in transfer_ids:
            sequence, page, restored = self._moving.pop(number)
            self.counts.acknowledged += 1
            sequence.moving.discard(page)
            if sequence.phase is not Phase.DONE and not restored:
                clean.append((sequence, page))
                sequence.clean.add(page)
        return clean
