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
        self._same_batch(rank, args, host.tolist())
        rank.layers.add(layer)
        source = self.s.layers[layer]["source"]
        self.same("batch", rank.places.setdefault(source, device.tolist()), device.tolist())
        self._where_they_belong(rank, source, host, device)
        rank.rows.update((slot, self.s.version(rank.number, rank.at, slot)) for slot in host.tolist())
        versions = np.array([rank.rows[slot] for slot in host.tolist()], dtype=np.int64)
        rank.dev[layer][device] = versions
        self.note_tags(layer, versions, post["tags"])
        self._report(rank, layer, args["deferred"], post)

    def _where_they_belong(self, rank: Rank, source: int, host: Any, device: Any) -> None:
        """Rows that the step mirrors are written where the scheduler said."""
        if len(host) != len(device) or len(set(host.tolist())) != len(host):
            self.reject("each row has its place", "EveryRowMirrored", f"{len(host)} host slots, {len(device)} slots")
        places = dict(self.placed(rank, source))
        for slot, at in zip(host.tolist(), device.tolist(), strict=True):
            if places.get(slot, at) != at:
                self.reject("a row is written where it is mirrored from", "EveryRowMirrored", f"host slot {slot}")

    def placed(self, rank: Rank, source: int) -> list[tuple[int, int]]:
        """Host slot and device slot of each row that the step mirrors."""
        if not self._rows(rank):
            return []
        host, device = self._host_rows(rank), self._device_rows(rank, source)
        return list(zip(host.tolist(), device.tolist(), strict=True))

    def _same_batch(self, rank: Rank, args: Args, slots: list[int]) -> None:
        """The layers of a phase write the rows of one batch."""
        batch = slots, args["states"], args["deferred"]
        if len(slots) != len(args["states"]):
            self.reject("each row has a state", "EveryRowMirrored", f"{len(slots)} rows")
        if rank.batch is None:
            rank.batch = batch
        self.same("batch", rank.batch, batch)

    def _report(self, rank: Rank, layer: int, deferred: bool, post: Args) -> None:
        """A layer reports where its rows stand. One that a graph runs does not, and is handed on behind the forward."""
        reported = set(post["reported"])
        due: list[int] = []
        if reported - rank.reported:
            may = self.writes(rank) and self._rows(rank) and not deferred and bool(rank.batch and rank.batch[0])
            if not may or layer in rank.reported or reported != rank.reported | {layer}:
                self.same("reported", sorted(rank.reported), post["reported"])
            rank.reported.add(layer)
            due = self._due(rank, layer, post)
            rank.handed.update(due)
        self.same("reported", sorted(rank.reported), post["reported"])
        expected = self.mirrored(rank, due)
        self.same("handed", pairs(expected), handed(post["handed"]), self._breaks(rank, expected, post))
        if expected:
            self.submit(rank, expected, [])

    def _due(self, rank: Rank, layer: int, post: Args) -> list[int]:
        """The layers that a report hands on: how many wait for one another is the worker's to say, but behind the
        last one of a source none is left."""
        waiting = rank.reported - rank.handed
        return sorted(waiting if self._is_last_of_source(layer) else waiting & handed(post["handed"]).keys())

    def _is_last_of_source(self, layer: int) -> bool:
        layers = self.s.layers
        return layer + 1 == len(layers) or layers[layer + 1]["source"] != layers[layer]["source"]

    def _rows(self, rank: Rank) -> int:
        return sum(each["num_rows"] for each in rank.mirrors)

    def mirrored(self, rank: Rank, layers: list[int]) -> Pieces:
        """The rows that the step mirrors, of these layers; each has written them."""
        if not layers or not self._rows(rank):
            return {}
        host = self._host_rows(rank)
        pieces = {layer: (host, self._device_rows(rank, self.s.layers[layer]["source"])) for layer in layers}
        meant = np.array([self.s.version(rank.number, rank.at, slot) for slot in host.tolist()], dtype=np.int64)
        for layer, (_, device) in pieces.items():
            if rank.rows and (rank.dev[layer][device] != meant).any():
                self.reject("a layer has written what it hands on", "EveryRowMirrored", f"layer {layer}")
        return pieces

    def _host_rows(self, rank: Rank) -> Any:
        return self._concat(each["destination_start"] + np.arange(each["num_rows"]) for each in rank.mirrors)

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
        if args["slots"] or rank.batch is not None:
            self._same_batch(rank, args, args["slots"])
        if args["staged"] is not None:
            self._reject_rows(rank, args["staged"])
        if unwritten := set(self._host_rows(rank).tolist()) - rank.rows.keys() if rank.rows else None:
            self.reject("rows that are mirrored were written", "EveryRowMirrored", f"host slots {sorted(unwritten)}")
        self._finish_phase(rank, args, post, draft=False)
        rank.phase = "target"
        if not rank.drafts:
            self._stand(rank)

    def _reject_rows(self, rank: Rank, staged: list[int]) -> None:
        """Of a deferred batch the sampler says which rows stand; the others are never handed on."""
        slots, _, deferred = rank.batch or ([], [], False)
        if not self.writes(rank):
            self.reject("the writer is told which rows stand", "OneHostWriter", f"rank {rank.number}")
        if not deferred or len(staged) != len(slots):
            self.reject("rows of a deferred batch are refined", "AcceptedRowsOnly", f"{len(staged)} slots were staged")
        source = self.s.layers[0]["source"]
        for slot, device, written in zip(slots, staged, rank.places.get(source, staged), strict=True):
            if device not in (-1, written):
                self.reject("a row that stands is one that was written", "AcceptedRowsOnly", f"slot {device}")
            if device < 0:
                self.s.rejected.add(rank.rows.get(slot, -1))
        rank.mirrors = [
            {"source_starts": [start + at for start in each["source_starts"]],
             "destination_start": each["destination_start"] + at, "num_rows": 1}
            for each in rank.mirrors for at in range(each["num_rows"]) if each["source_starts"][source] + at in staged
        ]  # fmt: skip

    def finish_drafts(self, rank: Rank, args: Args, post: Args) -> None:
        self.through(rank)
        if rank.phase not in ("target", "drafted") or not rank.drafts:
            self.reject("the draft layers' phase has come", "CleanMeansDurable", f"it is at {rank.phase!r}")
        if args["slots"] or rank.batch is not None:
            self._same_batch(rank, args, args["slots"])
        self._finish_phase(rank, args, post, draft=True)
        rank.phase = "drafts"
        self._stand(rank)

    def _finish_phase(self, rank: Rank, args: Args, post: Args, *, draft: bool) -> None:
        """What was not handed on layer by layer is, all layers at once; the rows written are not hot any more."""
        layers = self.s.of_phase(draft=draft) if args["slots"] else []
        if layers and (rank.layers or self._rows(rank)) and rank.layers != set(layers):
            self.reject("each layer of the phase has written", "EveryRowMirrored", f"only {sorted(rank.layers)} have")
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
        rank.reported, rank.handed, rank.layers, rank.batch, rank.places = set(), set(), set(), None, {}
        self.order(rank)

    def _forget(self, rank: Rank, group: int, slots: list[int], states: list[int]) -> None:
        for state in set(states):
            gone = {slot for slot, of in zip(slots, states, strict=True) if of == state}
            rank.hot[group][state] = [slot for slot in rank.hot[group][state] if slot not in gone]

    def _stand(self, rank: Rank) -> None:
        """The step's rows are accepted."""
        if not self.writes(rank):
            return
        for slot in self._host_rows(rank).tolist():
            self.s.truth[slot] = self.s.version(rank.number, rank.at, slot)

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
        if not self.s.layers[args["layer"]]["leader"]:
            self.reject("a leader selects", "NoRecycledHotRow", f"layer {args['layer']}")
        group = self.s.group_of(args["layer"])
        if len({(state, slot) for state, slot in args["slots"]}) < len(args["slots"]):
            self.reject("what is selected is said once", "NoRecycledHotRow", f"{args['slots']}")
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
            if self.knows_host() and self.s.truth[slot] and version != self.s.truth[slot]:
                self.reject("a hot row is the present tenant's, as it is now", "NoRecycledHotRow", f"host slot {slot}")
        self.same_tags("selected", layer, versions, post["tags"])
