"""Lets TLC look for a model that kills each mutant, several at a time.

A mutant is tried first on the model that is known to kill it, if there is one. The others go through the models one by
one, the cheapest first. In each, a mutant of a part that TLC never evaluates there does not matter. Mutants that only
add steps are tried many at once and without properties: where TLC finds as many steps as in the specification itself
there are no others, so that none of these mutants matters; else the half that adds steps is looked for. Mutants that
only demand more are tried at once too: where all that they demand holds, each survives. In the cheapest
models, where a run is as long as its start, only those are put together that are likely to come out alike. What remains
is checked mutant by mutant.

A mutant may have states without end in a model: it is given up there after a few times what the model takes. Only if no
other model kills it, is it given the whole limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..manifest import OK, Model
from ..output import Kind
from .generator import Mutant, joined
from .syntax import Module
from .trial import Trials, Verdict

SAME_STEPS = "same steps"
NOT_REACHED = "not reached"
#: what a model says that has shown something about a mutant that it does not kill
SHOWN = (OK, SAME_STEPS, NOT_REACHED)
#: so many of the cheapest models are tried before all mutants are put together
EAGER = 4
NOWHERE = ("", 0, 0, 0, 0)
LIMIT = Kind.LIMIT.value
#: at first a run may take so many seconds, and so many times what the model takes
PATIENCE_S, PATIENCE = 10.0, 4.0


@dataclass
class Case:
    """A mutant on its way through `models`, cheapest first; `said` has what each that did not kill it said."""

    mutant: Mutant
    models: Sequence[Model]
    #: models to try first, by name
    first: Sequence[str] = ()
    #: whether all models passed it before
    resistant: bool = False
    killed_by: str | None = None
    model: str | None = None
    said: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there are models left that may kill it."""
        return self.killed_by is None and len(self.said) < len(self.models)

    def give_another_chance(self) -> bool:
        """Forget the models that ran out of time, if nothing else killed it; whether there were any."""
        late = [name for name, said in self.said.items() if said == LIMIT] if self.killed_by is None else []
        for name in late:
            del self.said[name]
        return bool(late)

    @property
    def undecided(self) -> list[str]:
        """Models that showed nothing: an evaluation error, no end in time."""
        return sorted(name for name, said in self.said.items() if said not in SHOWN)


class Listener(Protocol):
    """Is told how the mutants go, by several threads."""

    def at(self, what: str) -> None:
        """What is being done."""

    def ended(self, case: Case) -> None:
        """A mutant was killed, or has survived all models."""


class Runner:
    """Runs cases with `jobs` JVMs at a time."""

    def __init__(self, trials: Trials, modules: Mapping[str, Module], jobs: int, listener: Listener) -> None:
        self._trials = trials
        self._modules = modules
        self._jobs = jobs
        self._listener = listener
        self._base: dict[str, Verdict] = {}
        #: whether a run may take the whole limit
        self._patient = False

    def run(self, cases: Sequence[Case]) -> None:
        """Fill in the cases. On an interrupt the JVMs are ended; cases that are no longer open keep their verdict."""
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                self._listener.at("one by one")
                list(pool.map(self._likely, cases))
                self._patient = False
                self._all_models(cases, pool)
                self._patient = True
                self._all_models([case for case in cases if case.give_another_chance()], pool)
            except BaseException:
                self._trials.runs.end()
                raise

    def _all_models(self, cases: Sequence[Case], pool: Executor) -> None:
        names = list(dict.fromkeys(model.name for case in cases for model in case.models))
        for index, name in enumerate(names):
            left = [case for case in cases if case.is_open and name not in case.said]
            self._through(name, left, index >= EAGER, pool)

    def _likely(self, case: Case) -> None:
        for model in case.models:
            if case.is_open and model.name in case.first:
                self._try(case, model)

    def _through(self, name: str, cases: Sequence[Case], together: bool, pool: Executor) -> None:
        if not cases:
            return
        model = _named(cases[0].models, name)
        base = self._baseline(model)
        for case in cases if base.said == OK else ():
            if case.mutant.kind != "guard" and base.coverage.get(case.mutant.place or NOWHERE) == 0:
                self._note(case, name, NOT_REACHED)
        groups = _groups([case for case in cases if name not in case.said], together)
        self._listener.at(f"{name}: {sum(map(len, groups))} together")
        for case in self._passing(model, groups, together, pool):
            self._note(case, name, SAME_STEPS if case.mutant.adds else OK)
        left = [case for case in cases if name not in case.said]
        self._listener.at(f"{name}: {len(left)} one by one")
        list(pool.map(lambda case: self._try(case, _named(case.models, name)), left))

    def _baseline(self, model: Model) -> Verdict:
        if model.name not in self._base:
            self._base[model.name] = self._trials.steps(model, {}, coverage=True)
        return self._base[model.name]

    def _try(self, case: Case, model: Model) -> None:
        verdict = self._trials.run(model, case.mutant.changes, self._limit_s(model))
        case.seconds += verdict.seconds
        if verdict.killed_by:
            case.killed_by, case.model = verdict.killed_by, model.name
            self._listener.ended(case)
        else:
            self._note(case, model.name, verdict.said)

    def _note(self, case: Case, name: str, said: str) -> None:
        case.said[name] = said
        if not case.is_open and (self._patient or LIMIT not in case.said.values()):
            self._listener.ended(case)

    def _limit_s(self, model: Model) -> float | None:
        base = self._base.get(model.name)
        return None if self._patient or base is None else PATIENCE_S + PATIENCE * base.seconds

    def _passing(self, model: Model, groups: list[list[Case]], halve: bool, pool: Executor) -> Iterator[Case]:
        while groups:
            found = list(pool.map(lambda group: self._passes(model, group), groups))
            yield from (case for group, nothing in zip(groups, found, strict=True) if nothing for case in group)
            adding = [group for group, nothing in zip(groups, found, strict=True) if not nothing]
            groups = [half for group in adding if halve or group[0].resistant for half in _split(group)]

    def _passes(self, model: Model, group: Sequence[Case]) -> bool:
        """Whether none of the group matters to the model."""
        changes = joined((case.mutant for case in group), self._modules)
        if group[0].mutant.demands:
            return self._trials.run(_named(group[0].models, model.name), changes, self._limit_s(model)).said == OK
        verdict = self._trials.steps(model, changes, limit_s=self._limit_s(model))
        return verdict.said == OK and verdict.generated == self._baseline(model).generated


def _groups(cases: Sequence[Case], together: bool) -> list[list[Case]]:
    """The cases to be tried at once, those that are likely to come out alike in one group."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        mutant = case.mutant
        if not (mutant.adds or mutant.demands):
            continue
        if case.resistant or (together and not mutant.is_common):
            groups.setdefault(f"{mutant.kind}, survived: {case.resistant}", []).append(case)
        elif mutant.is_common:
            groups.setdefault(mutant.says.partition("guard")[2], []).append(case)
    return list(groups.values())


def _split(group: list[Case]) -> list[list[Case]]:
    half = len(group) // 2
    return [group[:half], group[half:]] if half else []


def _named(models: Sequence[Model], name: str) -> Model:
    return next(model for model in models if model.name == name)


def without(model: Model, name: str) -> Model:
    """`model` with the property `name` not checked."""
    return replace(
        model,
        invariants=tuple(each for each in model.invariants if each != name),
        properties=tuple(each for each in model.properties if each != name),
        deadlock=model.deadlock and name != "Deadlock",
    )
