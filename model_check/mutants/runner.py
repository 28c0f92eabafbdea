"""Lets TLC look for a model that kills each mutant, several at a time.

A mutant is tried first on the model that is known to kill it, if there is one. The others go through the models, the
cheapest first, without those in which they change nothing: `probe` asks a model about all of them in one run. Mutants
that only demand more are tried many at once where the cheapest models passed them: where all that they demand holds,
each survives; else the half that does not hold is looked for.

A mutant may have states without end in a model: it is given up there after a few times what the model takes. Only if no
other model kills it, is it given the whole limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
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
#: so many of the cheapest models are tried before mutants are put together
EAGER = 4
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
        self._bases: dict[str, Verdict] = {}
        #: whether a run may take the whole limit
        self._patient = False

    def run(self, cases: Sequence[Case]) -> None:
        """Fill in the cases. On an interrupt the JVMs are ended; cases that are no longer open keep their verdict."""
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                self._patient = True
                self._each(cases, pool, lambda case, model: model.name in case.first)
                self._matterless([case for case in cases if case.is_open], pool)
                self._patient = False
                self._each(cases, pool, lambda case, model: not case.mutant.demands or model in case.models[:EAGER])
                self._together([case for case in cases if case.is_open and case.mutant.demands], pool)
                self._each(cases, pool)
                self._patient = True
                self._each([case for case in cases if case.give_another_chance()], pool)
            except BaseException:
                self._trials.runs.end()
                raise

    def _each(self, cases: Sequence[Case], pool: Executor, wanted: Callable[[Case, Model], bool] | None = None) -> None:
        """Each case on all models, or the `wanted` ones, until one kills it."""

        def through(case: Case) -> None:
            for model in case.models:
                if case.is_open and model.name not in case.said and (wanted is None or wanted(case, model)):
                    self._listener.at(f"{model.name}: {case.mutant.operator}")
                    self._try(case, model)

        list(pool.map(through, cases))

    def _matterless(self, cases: Sequence[Case], pool: Executor) -> None:
        """Note of each case the models in which it changes nothing; and how long each model takes."""
        models = {model.name: model for case in cases for model in case.models if model.name not in case.said}
        self._listener.at(f"{len(models)} models as they are")
        self._bases |= dict(
            zip(models, pool.map(lambda model: self._trials.run(model, {}), models.values()), strict=True)
        )
        asked = {
            name: [case for case in cases if case.mutant.can_be_asked and name not in case.said] for name in models
        }
        self._listener.at(f"{len(models)} models: what changes nothing")
        mutants = [[case.mutant for case in asked[name]] for name in models]
        found = pool.map(self._trials.matterless, models.values(), repeat(self._modules), mutants)
        for name, matterless in zip(models, found, strict=True):
            for case in asked[name]:
                if case.mutant.name in matterless:
                    self._note(case, name, SAME_STEPS)

    def _together(self, cases: Sequence[Case], pool: Executor) -> None:
        """Note of each case, all of which demand more, the models in which it holds what it demands."""
        for name in dict.fromkeys(model.name for case in cases for model in case.models):
            holds = partial(self._holds, name)
            groups = [[case for case in cases if case.is_open and name not in case.said]]
            while groups := [group for group in groups if group]:
                self._listener.at(f"{name}: {sum(map(len, groups))} together")
                found = list(zip(groups, pool.map(holds, groups), strict=True))
                for case in [case for group, all_hold in found if all_hold for case in group]:
                    self._note(case, name, OK)
                groups = [half for group, all_hold in found if not all_hold for half in _split(group)]

    def _holds(self, name: str, group: Sequence[Case]) -> bool:
        """Whether all that the group demands holds in a model."""
        changes = joined((case.mutant for case in group), self._modules)
        model = _named(group[0].models, name)
        return self._trials.run(model, changes, self._limit_s(model)).said == OK

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
        base = self._bases.get(model.name)
        return None if self._patient or base is None else PATIENCE_S + PATIENCE * base.seconds


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
