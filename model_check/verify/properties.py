"""What each property says, and the mutants that it alone stands against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..manifest import Manifest, load_manifest
from ..mutants.code import load_code_mutants
from ..mutants.verdicts import Verdicts, load_verdicts
from ..words import in_words


@dataclass(frozen=True)
class Proven:
    """A property: its words, the models that check it, and the mutants that it kills, each with the model or
    the scenario that showed it."""

    name: str
    says: str
    models: int
    mutants: tuple[tuple[str, str], ...]


def proven(manifest: Manifest | None = None, verdicts: Verdicts | None = None) -> list[Proven]:
    """Every property that some model checks, in the order of the manifest."""
    manifest, verdicts = manifest or load_manifest(), verdicts or load_verdicts()
    checked: dict[str, int] = defaultdict(int)
    for model in manifest.models.values():
        for name in (*model.invariants, *model.properties):
            checked[name] += model.kind == "model"
    killed: Mapping[str, list[tuple[str, str]]] = defaultdict(list)
    for name, mutant, by in _kills(manifest, verdicts):
        killed[name].append((mutant, by))
    return [
        Proven(name, in_words(name), models, tuple(killed.get(name, ())))
        for name, models in checked.items()
        if models or killed.get(name)
    ]


def _kills(manifest: Manifest, verdicts: Verdicts) -> Iterator[tuple[str, str, str]]:
    """Property, mutant, and the model or scenario that shows it: of the manifest, of the code, generated ones."""
    for model in manifest.models.values():
        if model.kills:
            yield model.kills, model.name, model.name
    for slip in load_code_mutants().values():
        yield slip.breaks, slip.name, slip.scenarios[0]
    for name, record in verdicts.mutants.items():
        if record.killed_by and record.model:
            yield record.killed_by, name, record.model
