"""What came out of the mutants, kept in `verdicts.json` by content: what did not change need not be run again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ManifestError
from ..manifest import Model
from .fingerprint import Fingerprints
from .generator import Mutant
from .runner import LIMIT, NOT_REACHED, Case, without
from .syntax import short_hash

VERDICTS = Path(__file__).resolve().parent / "verdicts.json"


@dataclass(frozen=True)
class Record:
    """What is known of a mutant: the property and the model that kill it, or what each model said that was asked.

    `keys` has for each model that the verdict rests on the key of what it saw: the specification with the mutant, as
    far as the model uses it. A model that ran out of time has none: it said nothing that can be kept.
    """

    killed_by: str | None
    model: str | None
    said: dict[str, str]
    seconds: float
    keys: dict[str, str]


@dataclass
class Verdicts:
    """The records of mutants by name, and for each property a mutant that no other property kills."""

    mutants: dict[str, Record] = field(default_factory=dict)
    alone: dict[str, dict[str, str]] = field(default_factory=dict)

    def save(self, path: Path = VERDICTS) -> None:
        """Write them, a line for each, in an order that does not depend on the run."""
        mutants = _lines({name: asdict(each) for name, each in self.mutants.items()})
        text = f'{{"mutants": {mutants},\n"alone": {_lines(self.alone)}}}\n'
        path.write_text(text, encoding="utf-8")


def _lines(entries: Mapping[str, Any]) -> str:
    """An object of JSON with a line for each entry."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries))
    return f"{{\n{lines}\n}}"


def load_verdicts(path: Path = VERDICTS) -> Verdicts:
    """The verdicts at `path`; none where there is no such file."""
    if not path.is_file():
        return Verdicts()
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        mutants = {name: Record(**each) for name, each in data["mutants"].items()}
        return Verdicts(mutants, data["alone"])
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path} has no verdicts: {error!r}; delete it, and run all mutants again") from error


class Keys:
    """The keys of verdicts on some models."""

    def __init__(self, fingerprints: Fingerprints, models: Sequence[Model]) -> None:
        self._fingerprints = fingerprints
        self._models = {model.name: model for model in models}

    def of(self, mutant: Mutant, model: str) -> str:
        """The key of a mutant in `model`; empty where there is no such model."""
        return self._fingerprints.of(self._models[model], mutant.changes) if model in self._models else ""

    def of_all(self, mutant: Mutant, unchecked: str = "") -> str:
        """The key of a mutant in all models that check something that it changes, the property `unchecked` apart."""
        models = (without(self._models[name], unchecked) for name in self.touched(mutant))
        return short_hash(" ".join(sorted(self._fingerprints.of(model, mutant.changes) for model in models)), 16)

    def touched(self, mutant: Mutant) -> set[str]:
        """The models that check something that the mutant changes, by name."""
        return {name for name, model in self._models.items() if self._touches(mutant, model)}

    def untouched(self, mutant: Mutant) -> set[str]:
        """The other ones."""
        return set(self._models) - self.touched(mutant)

    def _touches(self, mutant: Mutant, model: Model) -> bool:
        if mutant.edit is not None:
            return self._fingerprints.leads_to(model, mutant.module, mutant.operator)
        return self._fingerprints.of(model, mutant.changes) != self._fingerprints.of(model)

    def still(self, mutant: Mutant, record: Record | None) -> dict[str, str]:
        """What is known of `mutant` from the models that see the same as when they were asked."""
        if record is None:
            return {}
        said = {record.model: record.killed_by} if record.model and record.killed_by else record.said
        return {name: said[name] for name, key in record.keys.items() if self.of(mutant, name) == key}

    def holds(self, mutant: Mutant, record: Record | None) -> bool:
        """Whether `record` is about `mutant` as it is now, and no model has to be asked any more."""
        if record is None:
            return False
        still = self.still(mutant, record)
        return record.model in still if record.model else self.touched(mutant) <= set(still)


def sample(mutants: Sequence[Mutant], part: float, seed: int) -> list[Mutant]:
    """A random part of `mutants`, the same for each `seed`."""
    return random.Random(seed).sample(list(mutants), min(len(mutants), round(part * len(mutants) + 0.49)))


def case_for(
    mutant: Mutant,
    models: Sequence[Model],
    record: Record | None,
    untouched: Iterable[str] = (),
    said: Mapping[str, str] | None = None,
) -> Case:
    """The case to run: first what killed the mutant before, if something did, and never the models `untouched`, nor
    those that `said` something before."""
    known = dict.fromkeys(sorted(untouched), NOT_REACHED) | dict(said or {})
    return Case(mutant, models, [record.model] if record and record.model else mutant.first, said=known)


def record(case: Case, keys: Keys) -> Record:
    """What is kept of `case`, open or not. Who checks nothing that the mutant changes is told at once anyway."""
    said = {} if case.killed_by else {name: says for name, says in case.said.items() if says != NOT_REACHED}
    rests_on = [case.model] if case.model else [name for name, says in said.items() if says != LIMIT]
    about = {name: keys.of(case.mutant, name) for name in rests_on}
    return Record(case.killed_by, case.model, said, round(case.seconds, 1), about)


def differences(before: Iterable[tuple[str, Record]], verdicts: Verdicts) -> list[str]:
    """The mutants of which a verdict on the same content came out differently."""
    return [
        f"{name}: {verdicts.mutants[name].killed_by or 'survived'}, and {old.killed_by or 'survived'} was kept"
        for name, old in before
        if verdicts.mutants[name].killed_by != old.killed_by
    ]
