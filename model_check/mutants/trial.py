"""One run of TLC on one mutant and one model, and the property that kills the mutant in it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import CheckError
from ..jvm import Toolchain
from ..manifest import DEADLOCK, OK, Manifest, Model
from ..output import Kind, Result
from ..tlc import Run, Runs, run_tlc
from ..workspace import prepare
from .generator import NEXT, Mutant
from .probe import INIT, questions
from .syntax import Module

_KILLS = (Kind.INVARIANT, Kind.ACTION_PROPERTY, Kind.TEMPORAL_PROPERTY, Kind.DEADLOCK)
#: a mutant may have many more states than the model has: it is given up then
LIMIT_S = 300.0


@dataclass(frozen=True)
class Verdict:
    """What one model says of a mutant: `killed_by` is a property, or None; `said` is TLC's verdict then."""

    killed_by: str | None
    said: str
    seconds: float


class Trials:
    """Lets TLC check models of `manifest` with texts of modules replaced."""

    def __init__(self, manifest: Manifest, tools: Toolchain, limit_s: float = LIMIT_S) -> None:
        self._manifest = manifest
        self._tools = tools
        self._limit_s = limit_s
        self.runs = Runs()

    def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
        """The verdict on `model` where the modules of `changes` have another text."""
        result = self._run(model, changes, limit_s=limit_s)
        if result.kind not in _KILLS:
            return Verdict(None, result.kind.value, result.seconds)
        killer, more = self._killer(model, changes, result)
        return Verdict(killer, killer or "violation without a name", result.seconds + more)

    def matterless(
        self, model: Model, modules: Mapping[str, Module], mutants: Sequence[Mutant], limit_s: float | None = None
    ) -> set[str]:
        """The mutants, by name, that change nothing in `model`: of those without a guard the ones that add no step, of
        those with another update the ones whose update it never comes to. A mutant whose steps TLC cannot evaluate, or
        not before the limit, is not among them."""
        bare = replace(model, invariants=(), properties=(), deadlock=False, specification=None, init=INIT, next=NEXT)
        left = list(mutants)
        while left:
            asking = questions(modules, model.module, left)
            result = self._run(bare, asking.changes, limit_s=limit_s)
            if result.kind is Kind.OK:
                found = {int(number) for number in result.said}
                return {mutant.name for number, mutant in asking.asked.items() if number not in found}
            if result.kind not in (Kind.EVALUATION, Kind.CRASH, Kind.LIMIT):
                raise CheckError(f"{model.name} cannot be asked about mutants: {result.explanation}")
            failed = asking.failed(result.explanation)
            left = [mutant for mutant in left if mutant.name not in failed] if failed else []
        return set()

    def _run(
        self, model: Model, changes: Mapping[str, str], options: tuple[str, ...] = (), limit_s: float | None = None
    ) -> Result:
        with tempfile.TemporaryDirectory(prefix="palimpsest-mutant-") as folder:
            # what a mutant of the manifest is expected to violate would be checked first
            module, config = prepare(replace(model, expect=OK, mutates=()), self._manifest, Path(folder))
            for name, text in changes.items():
                (Path(folder) / f"{name}.tla").write_text(text, encoding="utf-8")
            limit = min(self._limit_s, model.limit_s, limit_s or self._limit_s)
            run = Run(module, config, 1, model.heap, model.deadlock, limit, options)
            return run_tlc(run, self._tools, None, self.runs)

    def _killer(self, model: Model, changes: Mapping[str, str], result: Result) -> tuple[str | None, float]:
        """The violated property: TLC gives a temporal one no name, and a part of one only its place."""
        if result.kind is Kind.DEADLOCK:
            return DEADLOCK, 0.0
        if result.name in (*model.invariants, *model.properties):
            return result.name, 0.0
        seconds = 0.0
        for name in model.properties:
            alone = self._run(replace(model, properties=(name,), invariants=(), deadlock=False), changes)
            seconds += alone.seconds
            if alone.kind in _KILLS:
                return name, seconds
        return None, seconds
