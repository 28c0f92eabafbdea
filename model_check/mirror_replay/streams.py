"""Streams: what was queued happens in the order of its stream, and a wait is for the record that was the last then.

Where the trace is `observed` (copies on the host), each copy has its event (`copy_runs`) and each wait of the forward
stream that may block has one (`compute_runs`), which is refused while the record has not been reached. Records and
ends carry no rows and have no events: they happen as soon as the copies before them have. Otherwise all of it happens
at once.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ..replay.tables import IntArray
from ..replay.verdict import RejectedError
from .state import Copy, MirrorState, Pieces, Rank

#: what a difference in what was logged breaks first
PROPERTIES_OF = {
    "events": ("EventNotReused",),
    "handed": ("MirroredOnce", "EveryRowMirrored", "CleanMeansDurable"),
    "reported": ("MirroredOnce",),
    "waiting": ("CleanMeansDurable", "EveryTransferEnds"),
    "enqueued": ("CleanMeansDurable", "EveryTransferEnds"),
    "taken": ("CleanMeansDurable", "EveryTransferEnds"),
    "stale": ("NoRecycledHotRow",),
    "hot": ("NoRecycledHotRow",),
    "missing": ("NoRecycledHotRow",),
    "selected": ("NoRecycledHotRow",),
    "wrote": ("OneHostWriter",),
    "copies": ("HostCopyAfterWrites",),
    "landed": ("EveryRowMirrored",),
    "restored": ("RestoreKeepsRows",),
    "batch": ("AcceptedRowsOnly",),
}


class StreamRules:
    """Refusals, and the streams of a rank."""

    def __init__(self, state: MirrorState) -> None:
        self.s = state
        self.now: Rank | None = None
        self.observed: bool = state.config["observed"]
        self.eager: bool = state.config["eager"]
        self.page_rows: int = state.config["block_rows"]
        self.shared: bool = state.config["ranks"] > 1

    # ---------------------------------------------------------------- refusing

    def reject(self, guard: str, breaks: str, says: str = "is false") -> NoReturn:
        """Refuse the event: `guard` does not hold, and the property `breaks` rests on it."""
        raise RejectedError("guard", guard, (breaks,), says, self.s.excerpt(self.now))

    def same(self, variable: str, spec: Any, logged: Any, breaks: tuple[str, ...] = ()) -> None:
        """Refuse the event unless the rules give for `variable` what was logged."""
        if spec != logged:
            says = f"the specification has {spec!r}, the code logged {logged!r}"
            properties = breaks or PROPERTIES_OF[variable]
            raise RejectedError("post", variable, properties, says, self.s.excerpt(self.now))

    def same_tags(self, variable: str, layer: int, versions: IntArray, tags: Any, breaks: tuple[str, ...] = ()) -> None:
        """Refuse the event unless rows carry the identities that their versions were written with."""
        if tags is None:
            return
        if len(tags) != len(versions):
            self.same(variable, len(versions), len(tags), breaks)
        for version, tag in zip(versions.tolist(), np.asarray(tags).tolist(), strict=True):
            known = self.s.tags.get((layer, version))
            if known is not None:
                self.same(variable, list(known), tag, breaks)
            elif not version and self.knows_host() and (layer, tuple(tag)) in self.s.identities:
                self.same(variable, "no row", tag, breaks)

    def knows_host(self) -> bool:
        """Whether the rank that writes the pool is in this trace."""
        return 0 in self.s.ranks

    def writes(self, rank: Rank) -> bool:
        """Whether this rank writes the pool."""
        return rank.number == 0

    # ---------------------------------------------------------------- what is queued

    def submit(self, rank: Rank, pieces: Pieces, ends: list[int]) -> None:
        """Rows to the copy stream, behind what the forward stream has; the step's event behind them, then `ends`."""
        if not self.writes(rank):
            self.reject("the rank writes the pool", "OneHostWriter", f"rank {rank.number}")
        meant = {layer: rank.dev[layer][device].copy() for layer, (_, device) in pieces.items()}
        rank.issued[rank.current] += 1
        rank.copies.append(("copy", Copy(pieces, meant)))
        rank.copies.append(("record", rank.current, rank.issued[rank.current]))
        self.end_behind(rank, ends)
        rank.dirty = True

    def end_behind(self, rank: Rank, ends: list[int]) -> None:
        """Transfers end behind all that was handed to the copy stream."""
        rank.copies.extend(("end", each) for each in ends)
        if not self.observed:
            self.copies_run(rank)

    def give(self, rank: Rank, *items: tuple[Any, ...]) -> None:
        """To the forward stream, which does it at once where nothing in front has to be waited for."""
        rank.compute.extend(items)
        if not self.observed or not any(item[0] in ("wait", "restore") for item in rank.compute):
            self.compute_runs_on(rank)

    def order(self, rank: Rank) -> None:
        """What the forward stream gets next waits for the phase's copies; without any, the event is recorded there."""
        if rank.dirty:
            rank.dirty = False
            self.give(rank, ("wait", rank.current, rank.issued[rank.current]))
        else:
            rank.issued[rank.current] += 1
            self.give(rank, ("record", rank.current, rank.issued[rank.current]))

    # ---------------------------------------------------------------- what happens

    def compute_runs_on(self, rank: Rank) -> None:
        """The forward stream does all it was given."""
        while rank.compute:
            what, *rest = rank.compute.popleft()
            if what == "wait":
                self.reach(rank, *rest)
            elif what == "record":
                event, number = rest
                rank.reached[event] = number
            elif what == "end":
                self.acknowledge(rest[0])
            elif what == "restore":
                for layer, (host, device) in rest[0].items():
                    rank.dev[layer][device] = self.s.host[layer][host]

    def reach(self, rank: Rank, event: int, number: int) -> None:
        """Somebody has waited for a record: it must have been reached."""
        self.pass_marks(rank)
        if not self.observed:
            self.copies_run(rank)
        if rank.reached[event] < number:
            waits = sum(item[0] == "copy" for item in rank.copies)
            self.reject("the copies waited for have landed", "HostCopyAfterWrites", f"{waits} are on their way")

    def landed(self, rank: Rank, event: int) -> bool:
        """Whether the last record of an event was reached."""
        self.pass_marks(rank)
        if not self.observed:
            self.copies_run(rank)
        return rank.reached[event] == rank.issued[event]

    def pass_marks(self, rank: Rank) -> None:
        """Records and ends whose copies have landed."""
        while rank.copies and rank.copies[0][0] != "copy":
            what, *rest = rank.copies.popleft()
            if what == "record":
                rank.reached[rest[0]] = max(rank.reached[rest[0]], rest[1])
            else:
                self.acknowledge(rest[0])

    def copies_run(self, rank: Rank) -> None:
        """Where the trace does not tell of copies: all of them."""
        while rank.copies:
            if rank.copies[0][0] == "copy":
                self.land(rank, rank.copies.popleft()[1])
            else:
                self.pass_marks(rank)

    def land(self, rank: Rank, copy: Copy) -> None:
        """Rows come to the host as they are on the device now."""
        for layer, (host, device) in copy.pieces.items():
            rows = rank.dev[layer][device]
            if self.observed and (rows != copy.meant[layer]).any():
                self.reject("rows that are handed on stay until they are copied", "EveryRowMirrored", f"layer {layer}")
            if self.eager and self.s.rejected.intersection(rows.tolist()):
                self.reject("a rejected row does not reach the host", "AcceptedRowsOnly", f"layer {layer}")
            self.s.host[layer][host] = rows

    def acknowledge(self, transfer: int) -> None:
        """A transfer ends: the accepted rows of its page are on the host, in every layer."""
        slots, versions = self.s.wanted.pop(transfer, (None, None))
        if slots is not None:
            for layer, host in enumerate(self.s.host):
                if (host[slots] != versions).any():
                    missing = slots[host[slots] != versions].tolist()
                    self.reject(
                        "the page is durable", "CleanMeansDurable", f"{transfer}: layer {layer}, rows {missing}"
                    )
        self.s.acked.append(transfer)
