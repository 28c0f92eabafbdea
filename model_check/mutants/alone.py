"""For each property, a mutant that no other property kills: without it, that mistake would go unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..manifest import DEADLOCK, Model
from .generator import Mutant
from .runner import Case, Runner, without
from .verdicts import Keys, Verdicts, case_for

#: so many mutants of a property are tried
CANDIDATES = 6


def properties_of(models: Sequence[Model]) -> list[str]:
    """All that `models` check, as verdicts name it."""
    names = [name for model in models for name in (*model.invariants, *model.properties)]
    return list(dict.fromkeys([*names, *([DEADLOCK] if any(model.deadlock for model in models) else [])]))


def holds(name: str, mutants: Mapping[str, Mutant], verdicts: Verdicts, keys: Keys) -> bool:
    """Whether the mutant kept for the property `name` is known to be killed by it alone, as both are now."""
    kept = verdicts.alone.get(name)
    if kept is None or kept["mutant"] not in mutants:
        return False
    killed = verdicts.mutants.get(kept["mutant"])
    mutant = mutants[kept["mutant"]]
    return killed is not None and killed.killed_by == name and keys.of_all(mutant, name) == kept["key"]


def find(
    names: Sequence[str],
    mutants: Mapping[str, Mutant],
    models: Sequence[Model],
    verdicts: Verdicts,
    keys: Keys,
    runner: Runner,
) -> None:
    """Note in `verdicts` a mutant that each of the properties `names` alone kills, where there is one."""
    candidates = {name: _candidates(name, mutants, verdicts) for name in names}
    for name in names:
        verdicts.alone.pop(name, None)
    for turn in range(CANDIDATES):
        open_names = [name for name in names if name not in verdicts.alone and turn < len(candidates[name])]
        cases = {name: _case(candidates[name][turn], models, name, verdicts, keys) for name in open_names}
        if cases:
            runner.run(list(cases.values()))
        for name, case in cases.items():
            if case.killed_by is None and not case.undecided:
                key = keys.of_all(case.mutant, name)
                verdicts.alone[name] = {"mutant": case.mutant.name, "key": key}


def _candidates(name: str, mutants: Mapping[str, Mutant], verdicts: Verdicts) -> list[Mutant]:
    """The mutants of the protocol that the property kills, the one kept before and mistakes of the catalogue first."""
    kept = verdicts.alone.get(name, {}).get("mutant")
    killed = [each for each, record in verdicts.mutants.items() if record.killed_by == name and each in mutants]
    order = sorted(killed, key=lambda each: (each != kept, mutants[each].kind != "mistake", each))
    return [mutants[each] for each in order if mutants[each].is_of_protocol]


def _case(mutant: Mutant, models: Sequence[Model], name: str, verdicts: Verdicts, keys: Keys) -> Case:
    first = verdicts.mutants[mutant.name]
    unchecked = [without(model, name) for model in models]
    return case_for(mutant, unchecked, first, keys.untouched(mutant))
