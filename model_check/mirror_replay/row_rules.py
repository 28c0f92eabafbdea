"""The rules of rows: layers write and hand on, phases end, attention selects and gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..replay.rules import Args
from .state import Pieces, Rank
from .step_rules import StepRules, handed, pairs


class RowRules(StepRules):
    """What a worker's layers do."""

    # ---------------------------------------------------------------- layers write

    def write(self, rank: Rank, args: Args, post: Args) -> None:
        layer, draft = args["layer"], self.s.layers[args["layer"]]["draft"]
        self.through(rank)
        if rank.phase not in (("target", "drafted") if draft else ("started", "forward")):
            self.reject("the layer's phase has come", "CleanMeansDurable", f"layer {layer} at {rank.phase!r}")
        if not draft and rank.stale:
            self.reject("hot rows of recycled blocks are forgotten", "NoRecycledHotRow", f"blocks {rank.stale}")
        rank.phase = "drafted" if draft else "forward"
        host, device = (np.array(args[name], dtype=np.int64) for name in ("host", "device"))
        self._same_batch(rank, host.tolist(), args["deferred"])
        for slot in host.tolist():
            if slot not in rank.rows:
                rank.rows[slot] = self.s.new_version()
        versions = np.array([rank.rows[slot] for slot in host.tolist()], dtype=np.int64)
        rank.dev[layer][device] = versions
        self.note_tags(layer, versions, post["tags"])
        self._report(rank, layer, args["deferred"], post)

    def _same_batch(self, rank: Rank, host: list[int], deferred: bool) -> None:
        """The layers of a phase write the rows of one batch."""
        if rank.batch is None:
            rank.batch = host, deferred
        self.same("batch", rank.batch, (host, deferred))

    def _report(self, rank: Rank, layer: int, deferred: bool, post: Args) -> None:
        """A layer reports where its rows stand. One that a graph runs does not, and is handed on behind the forward."""
        reported = set(post["reported"])
        due: list[int] = []
        if reported - rank.reported:
            may = self.writes(rank) and self._rows(rank) and not deferred and bool(rank.batch and rank.batch[0])
            if not may or layer in rank.reported or reported != rank.reported | {layer}:
                self.same("reported", sorted(rank.reported), post["reported"])
            rank.reported.add(layer)
            if self._is_last_of_source(layer):
                due = sorted(rank.reported - rank.handed)
                rank.handed.update(due)
        self.same("reported", sorted(rank.reported), post["reported"])
        expected = self.mirrored(rank, due)
        self.same("handed", pairs(expected), handed(post["handed"]), self._breaks(rank, expected, post))
        if expected:
            self.submit(rank, expected, [])

    def _is_last_of_source(self, layer: int) -> bool:
        layers = self.s.layers
        return layer + 1 == len(layers) or layers[layer + 1]["source"] != layers[layer]["source"]

    def _rows(self, rank: Rank) -> int:
        return sum(each["num_rows"] for each in rank.mirrors)

    def mirrored(self, rank: Rank, layers: list[int]) -> Pieces:
        """The rows that the step mirrors, of these layers."""
        if not layers or not self._rows(rank):
            return {}
        host = self._concat(each["destination_start"] + np.arange(each["num_rows"]) for each in rank.mirrors)
        return {layer: (host, self._device_rows(rank, self.s.layers[layer]["source"])) for layer in layers}

    def _device_rows(self, rank: Rank, source: int) -> Any:
        return self._concat(each["source_starts"][source] + np.arange(each["num_rows"]) for each in rank.mirrors)

    @staticmethod
    def _concat(parts: Any) -> Any:
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def _breaks(self, rank: Rank, expected: Pieces, post: Args) -> tuple[str, ...]:
        """What a difference in rows that were handed on breaks first."""
        logged = handed(post["handed"])
        if logged and not self.writes(rank):
            return ("OneHostWriter",)
        host = {pair[0] for layer in logged.values() for pair in layer}
        if host & {slot for slot, version in rank.rows.items() if version in self.s.rejected}:
            return ("AcceptedRowsOnly",)
        if logged.keys() - expected.keys():
            return ("MirroredOnce",)
        return ("EveryRowMirrored", "CleanMeansDurable")

    # ---------------------------------------------------------------- phases end

    def finish_target(self, rank: Rank, args: Args, post: Args) -> None:
        self.through(rank)
        if rank.phase not in ("started", "forward"):
            self.reject("the forward has run", "CleanMeansDurable", f"it is at {rank.phase!r}")
        rank.drafts = bool(self.s.of_phase(draft=True)) and self._rows(rank) > 0
        if rank.batch is None:
            rank.batch = args["slots"], args["deferred"]
        if args["slots"] or rank.batch[0]:
            self._same_batch(rank, args["slots"], args["deferred"])
        self._reject_rows(rank, args["staged"], args["count"])
        self._finish_phase(rank, args, post, draft=False)
        rank.phase = "target"
        if not rank.drafts:
            self._stand(rank)

    def _reject_rows(self, rank: Rank, staged: list[int] | None, count: int) -> None:
        """Of a deferred batch the sampler says which rows stand; the others are never handed on."""
        assert rank.batch is not None
        if staged is None:
            self.same("batch", 0, count)
            return
        if not rank.batch[1] or not self.writes(rank) or len(staged) != count or count != len(rank.batch[0]):
            self.reject("rows of a deferred batch are refined", "AcceptedRowsOnly", f"{count} slots were staged")
        for slot, device in zip(rank.batch[0], staged, strict=True):
            if device < 0:
                self.s.rejected.add(rank.rows.get(slot, -1))
        source = self.s.layers[0]["source"]
        rank.mirrors = [
            {"source_starts": [start + at for start in each["source_starts"]],
             "destination_start": each["destination_start"] + at, "num_rows": 1}
            for each in rank.mirrors for at in range(each["num_rows"]) if each["source_starts"][source] + at in staged
        ]  # fmt: skip

    def finish_drafts(self, rank: Rank, args: Args, post: Args) -> None:
        self.through(rank)
        if rank.phase not in ("target", "drafted") or not rank.drafts:
            self.reject("the draft layers' phase has come", "CleanMeansDurable", f"it is at {rank.phase!r}")
        if args["slots"] or (rank.batch is not None and rank.batch[0]):
            self._same_batch(rank, args["slots"], args["deferred"])
        self._finish_phase(rank, args, post, draft=True)
        rank.phase = "drafts"
        self._stand(rank)

    def _finish_phase(self, rank: Rank, args: Args, post: Args, *, draft: bool) -> None:
        """What was not handed on layer by layer is, all layers at once; the rows written are not hot any more."""
        layers = self.s.of_phase(draft=draft) if args["slots"] else []
        active = layers if self.eager or not args["deferred"] else []
        if rank.reported and rank.reported != set(active):
            missed = sorted(set(active) - rank.reported)
            self.reject("each layer of the phase is mirrored", "EveryRowMirrored", f"layers {missed} did not report")
        due = sorted(rank.reported - rank.handed) if rank.reported else active
        expected = self.mirrored(rank, due) if self.writes(rank) else {}
        self.same("handed", pairs(expected), handed(post["handed"]), self._breaks(rank, expected, post))
        if expected:
            self.submit(rank, expected, [])
        for layer in layers:
            if self.s.layers[layer]["leader"]:
                self._forget(rank, self.s.group_of(layer), args["slots"], args["states"])
        self.same("hot", rank.hot, post["hot"])
        rank.reported, rank.handed, rank.batch = set(), set(), None
        self.order(rank)

    def _forget(self, rank: Rank, group: int, slots: list[int], states: list[int]) -> None:
        for state in set(states):
            gone = {slot for slot, of in zip(slots, states, strict=True) if of == state}
            rank.hot[group][state] = [slot for slot in rank.hot[group][state] if slot not in gone]

    def _stand(self, rank: Rank) -> None:
        """The step's rows are accepted."""
        if not self.writes(rank):
            return
        for host in self.mirrored(rank, [0]).values():
            for slot, device in zip(host[0].tolist(), host[1].tolist(), strict=True):
                self.s.truth[slot] = rank.dev[0][device]

    # ---------------------------------------------------------------- hot rows

    def invalidate_blocks(self, rank: Rank, args: Args, post: Args) -> None:
        self.through(rank)
        if rank.phase != "started":
            self.reject("no layer has run yet", "NoRecycledHotRow", f"it is at {rank.phase!r}")
        self.same("stale", rank.stale, args["blocks"])
        gone, rank.stale = set(rank.stale), []
        for group in rank.hot:
            group[:] = [[slot for slot in line if slot // self.page_rows not in gone] for line in group]
        self.same("hot", rank.hot, post["hot"])

    def select(self, rank: Rank, args: Args, post: Args) -> None:
        self.through(rank)
        if rank.phase not in ("started", "forward", "target", "drafted"):
            self.reject("a forward runs", "NoRecycledHotRow", f"it is at {rank.phase!r}")
        if rank.stale:
            self.reject("hot rows of recycled blocks are forgotten", "NoRecycledHotRow", f"blocks {rank.stale}")
        if rank.phase == "started":
            rank.phase = "forward"
        group = self.s.group_of(args["layer"])
        before = {(state, slot) for state, line in enumerate(rank.hot[group]) for slot in line}
        wanted = {(state, slot) for state, slot in args["slots"]}
        missing = sorted(wanted - before)
        self.same("missing", missing, sorted((state, slot) for state, slot in post["missing"]))
        after = {(state, slot) for state, line in enumerate(post["hot"]) for slot in line}
        if not wanted <= after <= before | wanted:
            self.same("hot", sorted(before | wanted), sorted(after))
        if any(len(line) > self.s.config["hot_rows"] or line != sorted(set(line)) for line in post["hot"]):
            self.reject("a state has room for its hot rows", "NoRecycledHotRow")
        rank.hot[group] = [list(line) for line in post["hot"]]
        rank.missing[group] = ([list(each) for each in missing], sorted(list(each) for each in wanted))

    def gather(self, rank: Rank, args: Args, post: Args) -> None:
        self.through(rank)
        layer = args["layer"]
        missing, wanted = rank.missing.get(self.s.group_of(layer), ([], []))
        self.same("selected", wanted, sorted(post["slots"]))
        mine = rank.hot_rows[layer]
        mine.update(((state, slot), int(self.s.host[layer][slot])) for state, slot in missing)
        versions = np.array([mine.get((state, slot), 0) for state, slot in post["slots"]], dtype=np.int64)
        for (_, slot), version in zip(post["slots"], versions.tolist(), strict=True):
            if self._knows_host() and self.s.truth[slot] and version != self.s.truth[slot]:
                self.reject("a hot row is the present tenant's, as it is now", "NoRecycledHotRow", f"host slot {slot}")
        self.same_tags("selected", layer, versions, post["tags"])

    def _knows_host(self) -> bool:
        """Whether the rank that writes the pool is in this trace."""
        return 0 in self.s.ranks
