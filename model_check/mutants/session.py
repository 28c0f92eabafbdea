"""One run of `palimpsest mutants`: what to run, running it, and the verdict on it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..check import usable_cores
from ..errors import CheckError
from ..jvm import SMALL, find_toolchain, runs_that_fit
from ..manifest import Manifest, Model
from . import alone, report
from .catalogue import CATALOGUE, load_catalogue
from .explained import SURVIVORS, load_explained
from .fingerprint import Fingerprints
from .generator import Mutant, generate
from .runner import Case, Runner
from .syntax import load
from .trial import LIMIT_S, Trials
from .verdicts import VERDICTS, Keys, case_for, differences, load_verdicts, record, sample

#: the name that models give a specification with fairness
FAIR = "LiveSpec"
#: a larger model takes too long for each of hundreds of mutants
LARGEST = 30_000


@dataclass(frozen=True)
class Which:
    """The mutants to run: those with one of `names` in theirs, or what changed and besides all or a random part."""

    names: tuple[str, ...] = ()
    all: bool = False
    part: float = 0.0
    seed: int = 0


class Session:
    """The mutants of a manifest's specification, their models and what is known of them."""

    def __init__(self, manifest: Manifest, data: Path | None = None, limit_s: float = LIMIT_S) -> None:
        self._manifest = manifest
        self._limit_s = limit_s
        folder = data or VERDICTS.parent
        self._file = folder / VERDICTS.name
        self._modules = {**load(manifest.spec), **load(manifest.path.parent)}
        self.models = _cheapest_first([each for each in manifest.select(which="full") if _is_small(each)])
        if not self.models:
            raise CheckError(f"no models of {LARGEST:,} states at most in {manifest.path}: nothing can kill a mutant")
        found = generate(self._modules, self.models)
        if (path := folder / CATALOGUE.name).is_file():
            found += load_catalogue(self._modules, manifest, path)
        self.mutants = {mutant.name: mutant for mutant in found}
        self.explained = load_explained(folder / SURVIVORS.name)
        self.verdicts = load_verdicts(self._file)
        self.keys = Keys(Fingerprints(self._modules), self.models)

    def selected(self, which: Which) -> list[Mutant]:
        """The mutants to run."""
        mutants = list(self.mutants.values())
        if which.names:
            found = [mutant for mutant in mutants if any(name in mutant.name for name in which.names)]
            if not found:
                raise CheckError(f"no mutant with {' or '.join(which.names)} in its name; --list shows them")
            return found
        changed = [mutant for mutant in mutants if not self._is_known(mutant)]
        if which.all:
            return mutants
        known = [mutant for mutant in mutants if mutant not in changed]
        return [*changed, *sample(known, which.part, which.seed)]

    def _is_known(self, mutant: Mutant) -> bool:
        return self.keys.holds(mutant, self.verdicts.mutants.get(mutant.name))

    def run(self, which: Which, jobs: int | None, console: Console) -> bool:
        """Run them, keep the verdicts, show the tables; whether all is as it must be."""
        mutants = self.selected(which)
        if not which.names:
            self._forget()
        before = [(each.name, self.verdicts.mutants[each.name]) for each in mutants if self._is_known(each)]
        with report.MutantProgress(console, len(mutants)) as progress:
            at_once = runs_that_fit(SMALL, jobs or usable_cores())
            trials = Trials(self._manifest, find_toolchain(), self._limit_s)
            runner = Runner(trials, self._modules, at_once, progress)
            try:
                self._run(mutants, runner)
                if not which.names:
                    progress.restart("properties that kill alone")
                    self._find_alone(runner, which.all)
            finally:
                self.verdicts.save(self._file)
        console.print(report.mutant_table(mutants, self.verdicts, self.explained))
        wrong = differences(before, self.verdicts)
        judged = mutants if which.names else list(self.mutants.values())
        wrong += report.unexplained(judged, self.verdicts, self.explained)
        if not which.names:
            wrong += report.stale(self.mutants, self.verdicts, self.explained)
            wrong += report.idle(self.idle)
            console.print(report.property_table(self.properties, self.mutants, self.verdicts, self.explained))
        report.print_end(console, len(mutants), len(self.mutants), wrong)
        return not wrong

    @property
    def properties(self) -> list[str]:
        """All that the models check."""
        return alone.properties_of(self.models)

    @property
    def idle(self) -> list[str]:
        """Those without a mutant that is known to be killed by them alone, as all is now, and without a reason."""
        return [
            name
            for name in self.properties
            if name not in self.explained.properties
            if not alone.holds(name, self.mutants, self.verdicts, self.keys)
        ]

    def _forget(self) -> None:
        """Drop the verdicts on mutants that are none any more."""
        for name in set(self.verdicts.mutants) - set(self.mutants):
            del self.verdicts.mutants[name]

    def _run(self, mutants: Sequence[Mutant], runner: Runner) -> None:
        cases = [self._case(mutant) for mutant in mutants]
        asked = [len(case.said) for case in cases]
        unknown = [not self._is_known(mutant) for mutant in mutants]
        try:
            runner.run(cases)
        finally:
            for case, before, is_new in zip(cases, asked, unknown, strict=True):
                if not case.is_open or (is_new and len(case.said) > before):
                    self.verdicts.mutants[case.mutant.name] = record(case, self.keys)

    def _case(self, mutant: Mutant) -> Case:
        """All models again for a verdict that holds; else those that have not seen the mutant as it is now."""
        known = self.verdicts.mutants.get(mutant.name)
        killed = known is not None and known.killed_by is not None
        said = {} if killed or self._is_known(mutant) else self.keys.still(mutant, known)
        return case_for(mutant, self.models, known, self.keys.untouched(mutant), said)

    def _find_alone(self, runner: Runner, again: bool) -> None:
        names = [name for name in self.properties if name not in self.explained.properties] if again else self.idle
        alone.find(names, self.mutants, self.models, self.verdicts, self.keys, runner)

    def show(self, names: Sequence[str], console: Console) -> None:
        """Print the mutants there are, and what is known of each."""
        mutants = [each for each in self.mutants.values() if not names or any(name in each.name for name in names)]
        console.print(report.mutant_table(mutants, self.verdicts, self.explained))


def _is_small(model: Model) -> bool:
    return model.kind == "model" and model.states is not None and model.states <= LARGEST


def _cheapest_first(models: Sequence[Model]) -> list[Model]:
    """Models with fairness last: TLC then looks for cycles, which takes it longer than their states would say."""
    return sorted(models, key=lambda model: (model.specification == FAIR, model.states is None, model.states))
