"""What came out of the mutants, kept in `verdicts.json` by content: what did not change need not be run again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ManifestError
from ..manifest import OK, Model
from ..output import Kind
from .fingerprint import Fingerprints
from .generator import Mutant
from .runner import NOT_REACHED, SAME_STEPS, Case, without
from .syntax import short_hash

VERDICTS = Path(__file__).resolve().parent / "verdicts.json"


@dataclass(frozen=True)
class Record:
    """A mutant's verdict: the property and the model that kill it, or what each model said of a survivor.

    `key` is of the content that the verdict is about: the mutated specification with that model, or with all.
    """

    killed_by: str | None
    model: str | None
    said: dict[str, str]
    seconds: float
    key: str


@dataclass(frozen=True)
class Begun:
    """What the models asked so far said of a mutant that none of them kills, each with the key of what it saw: a later
    run asks the others."""

    said: dict[str, str]
    keys: dict[str, str]


@dataclass
class Verdicts:
    """The records of mutants by name, for each property a mutant that no other property kills, and what was said of
    mutants by a run that did not come to its end."""

    mutants: dict[str, Record] = field(default_factory=dict)
    alone: dict[str, dict[str, str]] = field(default_factory=dict)
    begun: dict[str, Begun] = field(default_factory=dict)

    def save(self, path: Path = VERDICTS) -> None:
        """Write them, a line for each, in an order that does not depend on the run."""
        mutants = _lines({name: asdict(each) for name, each in self.mutants.items()})
        begun = _lines({name: asdict(each) for name, each in self.begun.items()})
        text = f'{{"mutants": {mutants},\n"begun": {begun},\n"alone": {_lines(self.alone)}}}\n'
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
        return Verdicts(mutants, data["alone"], {name: Begun(**each) for name, each in data["begun"].items()})
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path} has no verdicts: {error!r}; delete it, and run all mutants again") from error


class Keys:
    """The keys of verdicts on some models."""

    def __init__(self, fingerprints: Fingerprints, models: Sequence[Model]) -> None:
        self._fingerprints = fingerprints
        self._models = {model.name: model for model in models}

    def of_kill(self, mutant: Mutant, model: str) -> str:
        """The key of a mutant that `model` kills; empty where there is no such model."""
        return self._fingerprints.of(self._models[model], mutant.changes) if model in self._models else ""

    def of_survival(self, mutant: Mutant, unchecked: str = "") -> str:
        """The key of a mutant that all models pass, the property `unchecked` apart."""
        models = (without(model, unchecked) for model in self._models.values())
        return short_hash(" ".join(sorted(self._fingerprints.of(model, mutant.changes) for model in models)), 16)

    def untouched(self, mutant: Mutant) -> Iterator[str]:
        """The models that check nothing that the mutant changes, by name."""
        for name, model in self._models.items():
            if not self._touches(mutant, model):
                yield name

    def _touches(self, mutant: Mutant, model: Model) -> bool:
        if mutant.edit is not None:
            return self._fingerprints.leads_to(model, mutant.module, mutant.operator)
        return self._fingerprints.of(model, mutant.changes) != self._fingerprints.of(model)

    def of(self, case: Case) -> str:
        """The key of what came out of `case`."""
        return self.of_kill(case.mutant, case.model) if case.model else self.of_survival(case.mutant)

    def holds(self, mutant: Mutant, record: Record | None) -> bool:
        """Whether `record` is about `mutant` as it is now. One that ran out of time says nothing that can be kept."""
        if record is None or Kind.LIMIT.value in record.said.values():
            return False
        found = self.of_kill(mutant, record.model) if record.model else self.of_survival(mutant)
        return found == record.key


def sample(mutants: Sequence[Mutant], part: float, seed: int) -> list[Mutant]:
    """A random part of `mutants`, the same for each `seed`."""
    return random.Random(seed).sample(list(mutants), min(len(mutants), round(part * len(mutants) + 0.49)))


def case_for(
    mutant: Mutant,
    models: Sequence[Model],
    record: Record | None,
    untouched: Iterable[str] = (),
    begun: Mapping[str, str] | None = None,
) -> Case:
    """The case to run: first what killed the mutant before, if something did, and never the models `untouched`, nor
    those that a run before has asked."""
    said = dict.fromkeys(untouched, NOT_REACHED) | dict(begun or {})
    return Case(mutant, models, [record.model] if record and record.model else mutant.first, said=said)


def record(case: Case, keys: Keys) -> Record:
    """What is kept of `case`."""
    said = {} if case.killed_by else dict(case.said)
    return Record(case.killed_by, case.model, said, round(case.seconds, 1), keys.of(case))


def begun(case: Case, keys: Keys) -> Begun:
    """What is kept of a `case` that is still open. Who ran out of time is asked again, and who checks nothing that the
    mutant changes is told at once anyway."""
    said = {name: said for name, said in case.said.items() if said in (OK, SAME_STEPS)}
    return Begun(said, {name: keys.of_kill(case.mutant, name) for name in said})


def differences(before: Iterable[tuple[str, Record]], verdicts: Verdicts) -> list[str]:
    """The mutants of which a verdict on the same content came out differently."""
    return [
        f"{name}: {verdicts.mutants[name].killed_by or 'survived'}, and {old.killed_by or 'survived'} was kept"
        for name, old in before
        if verdicts.mutants[name].killed_by != old.killed_by and verdicts.mutants[name].key == old.key
    ]
