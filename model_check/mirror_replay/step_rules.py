"""The rules of a step's frame: imports, meeting, host block copies, transfers, acknowledgements, the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..replay.rules import Args
from ..replay.tables import IntArray
from .state import Pieces, Rank
from .streams import StreamRules


def handed(rows: list[dict[str, Any]]) -> dict[int, list[tuple[int, int]]]:
    """Logged rows by layer, in the order of their host slots."""
    found: dict[int, list[tuple[int, int]]] = {}
    for each in rows:
        found.setdefault(each["layer"], []).extend(zip(map(int, each["host"]), map(int, each["device"]), strict=True))
    return {layer: sorted(of_layer) for layer, of_layer in found.items()}


def pairs(pieces: Pieces) -> dict[int, list[tuple[int, int]]]:
    """The rules' rows likewise."""
    return {layer: sorted(zip(host.tolist(), device.tolist(), strict=True)) for layer, (host, device) in pieces.items()}


class StepRules(StreamRules):
    """What a worker does besides its layers' rows."""

    # ---------------------------------------------------------------- between steps

    def is_between(self, rank: Rank) -> bool:
        """Whether a step may begin: the last one was finished, or wrote nothing."""
        return rank.phase == "idle" or (rank.phase == "started" and not rank.mirrors and not rank.after)

    def through(self, rank: Rank) -> None:
        """The caller goes on only when what it gave to the forward stream is done."""
        if rank.compute:
            self.reject("the caller has waited", "EventNotReused", f"for {[item[0] for item in rank.compute]}")

    def import_rows(self, rank: Rank, args: Args, post: Args) -> None:
        s, slots = self.s, np.array(args["slots"], dtype=np.int64)
        if not self.writes(rank):
            self.reject("the rank writes the pool", "OneHostWriter", f"rank {rank.number}")
        for other in s.ranks.values():
            meets = other.phase == "meeting" and other.at == rank.at + 1
            if not (meets or (self.is_between(other) and other.at == rank.at)):
                self.reject("every rank is between two steps", "EveryRowMirrored", f"rank {other.number}")
            if not self.landed(other, other.current):
                self.reject("the last host writes have landed", "EveryRowMirrored", f"rank {other.number}")
        step = rank.at + 1
        versions = np.array([s.version(s.config["ranks"], step, slot) for slot in slots.tolist()], dtype=np.int64)
        s.host[args["layer"]][slots] = s.truth[slots] = versions
        s.imported.update((slots // self.page_rows).tolist())
        self.note_tags(args["layer"], versions, post["tags"])

    def note_tags(self, layer: int, versions: IntArray, tags: Any) -> None:
        """The identities that rows of these versions carry."""
        if tags is not None:
            if len(tags) != len(versions):
                self.same("batch", len(versions), len(tags))
            for version, tag in zip(versions.tolist(), np.asarray(tags).tolist(), strict=True):
                self.s.tags[layer, version] = tuple(tag)
                self.s.identities.add((layer, tuple(tag)))

    def forget_state(self, rank: Rank, args: Args, post: Args) -> None:
        if not self.is_between(rank):
            self.reject("the rank is between two steps", "NoRecycledHotRow")
        for group in rank.hot:
            group[args["state"]] = []
        self.same("hot", rank.hot, post["hot"])

    # ---------------------------------------------------------------- the step begins

    def await_writes(self, rank: Rank, args: Args, post: Args) -> None:
        if not self.is_between(rank):
            self.reject("the last step was finished", "CleanMeansDurable", f"it is at {rank.phase!r}")
        self.through(rank)
        rank.at, rank.phase, rank.dirty = rank.at + 1, "meeting" if self.shared else "met", False
        self.same("events", rank.current, post["waits"])
        rank.compute.append(("wait", rank.current, rank.issued[rank.current]))
        if not self.observed:
            self.compute_runs_on(rank)
        following = 1 - rank.current
        if not self.shared:
            rank.current = following
        self.same("events", 1 - following if not self.shared else following, post["next"])

    def compute_runs(self, rank: Rank, args: Args, post: Args) -> None:
        if not rank.compute:
            self.reject("the forward stream was given something", "EventNotReused")
        restored = [item[1] for item in rank.compute if item[0] == "restore"]
        self.compute_runs_on(rank)
        listed = [(each["layer"], each["block"]) for each in post["restored"]]
        logged = dict(zip(listed, (each["tags"] for each in post["restored"]), strict=True))
        due = {
            (layer, int(device[0]) // self.page_rows): (layer, host, device)
            for pieces in restored
            for layer, (host, device) in pieces.items()
        }
        self.same("restored", sorted(due), sorted(listed))
        for key, (layer, host, device) in due.items():
            if logged[key] is not None and len(logged[key]) == host.size:
                still = ~np.isin(host, self.on_their_way(layer))
                self.same_tags("restored", layer, rank.dev[layer][device][still], np.asarray(logged[key])[still])
            else:
                self.same_tags("restored", layer, rank.dev[layer][device], logged[key])

    def on_their_way(self, layer: int) -> list[int]:
        """Host slots whose rows may land before their copy says so: another rank may restore either row."""
        copies = [item[1] for each in self.s.ranks.values() for item in each.copies if item[0] == "copy"]
        return [slot for copy in copies if layer in copy.pieces for slot in copy.pieces[layer][0].tolist()]

    def meet(self, rank: Rank, args: Args, post: Args) -> None:
        if not self.shared or rank.phase != "meeting":
            self.reject("the rank comes to the meeting", "EventNotReused", f"it is at {rank.phase!r}")
        self.through(rank)
        for other in self.s.ranks.values():
            if other.at < rank.at:
                self.reject("every rank has come", "EventNotReused", f"rank {other.number} is in step {other.at}")
            if other.at == rank.at and other.phase == "meeting":
                self.through(other)
                if not self.landed(other, other.current):
                    self.reject("the last host writes have landed", "EventNotReused", f"rank {other.number}")
        rank.current, rank.phase = 1 - rank.current, "met"
        self.same("events", 1 - rank.current, post["next"])

    def copy_host_blocks(self, rank: Rank, args: Args, post: Args) -> None:
        if rank.phase != "met":
            self.reject("the ranks have met", "HostCopyAfterWrites", f"it is at {rank.phase!r}")
        self.through(rank)
        self.same("wrote", self.writes(rank), post["wrote"])
        rank.phase = "copied"
        if not self.writes(rank):
            if self.knows_host():
                self.same("copies", self.s.copied, (rank.at, args["copies"]))
            return
        self.s.copied = rank.at, args["copies"]
        if not self.landed(rank, 1 - rank.current) or any(item[0] == "copy" for item in rank.copies):
            self.reject("the last host writes have landed", "HostCopyAfterWrites")
        before = [row.copy() for row in (*self.s.host, self.s.truth)]
        for source, destination in args["copies"]:
            page = np.arange(self.page_rows)
            for now, then in zip((*self.s.host, self.s.truth), before, strict=True):
                now[destination * self.page_rows + page] = then[source * self.page_rows + page]
            self.s.imported.add(destination)
        slots = np.concatenate([each[1] * self.page_rows + np.arange(self.page_rows) for each in args["copies"]])
        for layer, tags in enumerate(post["tags"]):
            self.same_tags("copies", layer, self.s.host[layer][slots], tags)

    def start_transfers(self, rank: Rank, args: Args, post: Args) -> None:
        if rank.phase not in ("met", "copied"):
            self.reject("the step has begun", "EventNotReused", f"it is at {rank.phase!r}")
        self.through(rank)
        transfers = args["transfers"]
        self._well_shaped(transfers, args["mirrors"])
        restores = [each for each in transfers if each["restore"]]
        early = [each for each in transfers if not each["restore"] and not each["after_forward"]]
        rank.phase, rank.mirrors, rank.rows, rank.drafts = "started", args["mirrors"], {}, False
        rank.reported, rank.handed, rank.layers, rank.batch, rank.places = set(), set(), set(), None, {}
        rank.stale.extend(args["given"])
        self._restore(rank, restores)
        if self.writes(rank):
            self._want(early)
            self._blank(args["given"])
        expected = self.move(rank, early)
        rank.after.extend(each for each in transfers if not each["restore"] and each["after_forward"])
        self._same_queues(rank, expected, post)

    def _well_shaped(self, transfers: list[dict[str, Any]], mirrors: list[dict[str, Any]]) -> None:
        """Transfers are told apart, and so are the rows that the step mirrors; each has a place in every source."""
        sources = 1 + max(layer["source"] for layer in self.s.layers)
        places = [each["resident_block_ids"] for each in transfers] + [each["source_starts"] for each in mirrors]
        if any(len(each) != sources for each in places):
            self.reject("there is a place in every source", "EveryRowMirrored", f"{places}")
        if len({each["transfer_id"] for each in transfers}) < len(transfers):
            self.reject("transfers have ids of their own", "EveryTransferEnds")
        if any(each["restore"] and each["after_forward"] for each in transfers):
            self.reject("pages are restored before the forward", "RestoreKeepsRows")
        slots = [each["destination_start"] + at for each in mirrors for at in range(each["num_rows"])]
        if len(set(slots)) < len(slots) or any(each["num_rows"] < 1 for each in mirrors):
            self.reject("each row is mirrored once", "MirroredOnce", f"host slots {slots}")

    def _restore(self, rank: Rank, restores: list[dict[str, Any]]) -> None:
        rank.compute.extend(("restore", self._page(each)) for each in restores)
        if self.writes(rank):
            ends = [each["transfer_id"] for each in restores]
            rank.enqueued.extend(ends)
            rank.compute.extend(("end", each) for each in ends)
        rank.issued[rank.current] += 1
        self.give(rank, ("record", rank.current, rank.issued[rank.current]))

    def _page(self, transfer: dict[str, Any]) -> Pieces:
        page = np.arange(self.page_rows)
        host = transfer["host_block_id"] * self.page_rows + page
        blocks = transfer["resident_block_ids"]
        return {n: (host, blocks[layer["source"]] * self.page_rows + page) for n, layer in enumerate(self.s.layers)}

    def _want(self, transfers: list[dict[str, Any]]) -> None:
        """What a transfer stands for: the rows that are accepted in its block."""
        for each in transfers:
            slots = each["host_block_id"] * self.page_rows + np.arange(self.page_rows)
            known = slots[self.s.truth[slots] > 0]
            self.s.wanted[each["transfer_id"]] = known, self.s.truth[known].copy()

    def _blank(self, given: list[int]) -> None:
        """Blocks with a new tenant hold none of its rows, unless those were copied or imported."""
        for block in set(given) - self.s.imported:
            self.s.truth[block * self.page_rows : (block + 1) * self.page_rows] = 0
        self.s.imported.clear()

    def move(self, rank: Rank, transfers: list[dict[str, Any]]) -> Pieces:
        """Queue transfers to the host; gives the rows that are copied for them."""
        ends = [each["transfer_id"] for each in transfers]
        if not transfers or not self.writes(rank):
            return {}
        rank.enqueued.extend(ends)
        if self.eager:
            self.end_behind(rank, ends)
            return {}
        pages = [self._page(each) for each in transfers]
        pieces = {
            layer: (np.concatenate([p[layer][0] for p in pages]), np.concatenate([p[layer][1] for p in pages]))
            for layer in range(len(self.s.layers))
        }
        self.submit(rank, pieces, ends)
        return pieces

    def _same_queues(self, rank: Rank, expected: Pieces, post: Args) -> None:
        self.same("handed", pairs(expected), handed(post["handed"]))
        self.same("waiting", [each["transfer_id"] for each in rank.after], post["waiting"])
        self.same("enqueued", rank.enqueued, post["enqueued"])
        self.same("stale", rank.stale, post["stale"])

    # ---------------------------------------------------------------- its end

    def finish_step(self, rank: Rank, args: Args, post: Args) -> None:
        if rank.phase not in ("target", "drafts"):
            self.reject("its phases are finished", "CleanMeansDurable", f"it is at {rank.phase!r}")
        if rank.phase == "target" and rank.drafts:
            self.reject("the draft layers' rows are handed on", "CleanMeansDurable")
        self.through(rank)
        transfers, rank.after, rank.phase = rank.after, [], "idle"
        if self.writes(rank):
            self._want(transfers)
        self._same_queues(rank, self.move(rank, transfers), post)
        if transfers:
            self.order(rank)

    def take_completed_transfers(self, rank: Rank, args: Args, post: Args) -> None:
        self.pass_marks(rank)
        if not self.observed:
            self.copies_run(rank)
        taken = post["taken"]
        if not taken or not self.writes(rank):
            self.reject("the writer hears of transfers", "OneHostWriter", f"{taken}")
        self.same("taken", rank.enqueued[: len(taken)], taken)
        if early := [each for each in taken if each not in self.s.acked]:
            self.reject("its copies have landed", "CleanMeansDurable", f"transfers {early}")
        del rank.enqueued[: len(taken)]
        self.s.acked = [each for each in self.s.acked if each not in taken]

    def copy_runs(self, rank: Rank, args: Args, post: Args) -> None:
        self.pass_marks(rank)
        if not self.observed or not rank.copies:
            self.reject("rows were handed to the copy stream", "MirroredOnce")
        copy = rank.copies.popleft()[1]
        self.same("landed", pairs(copy.pieces), handed(post["rows"]))
        self.land(rank, copy)
        for each in post["rows"]:
            versions = self.s.host[each["layer"]][np.asarray(each["host"], dtype=np.int64)]
            self.same_tags("landed", each["layer"], versions, each["tags"])

    def shutdown(self, rank: Rank, args: Args, post: Args) -> None:
        self.pass_marks(rank)
        if self.observed and rank.copies:
            self.reject("nothing is on its way", "RegisteredWhileUsed", f"{len(rank.copies)} copies")
        self.compute_runs_on(rank)  # a wait that ran out before
        rank.phase = "closed"
