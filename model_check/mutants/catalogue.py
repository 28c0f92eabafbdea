"""The mistakes that real systems made (`catalogue.toml`), as mutants of the specification."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ManifestError
from ..manifest import Manifest, Model, Patch
from .generator import Mutant
from .syntax import Module

CATALOGUE = Path(__file__).resolve().parent / "catalogue.toml"
KIND = "mistake"


def load_catalogue(modules: Mapping[str, Module], manifest: Manifest, path: Path = CATALOGUE) -> list[Mutant]:
    """The mutants at `path`. Raises `ManifestError` where a text to replace is not there exactly once."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mistake", [])
    mutants = [_mutant(entry, modules, manifest) for entry in entries]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ManifestError(f"{path}: more than one mistake {', '.join(sorted(twice))}")
    return mutants


def _mutant(entry: dict[str, Any], modules: Mapping[str, Module], manifest: Manifest) -> Mutant:
    name = entry.get("name", "?")
    if missing := {"name", "says"} - set(entry):
        raise ManifestError(f"mistake {name}: has no {', '.join(sorted(missing))}")
    if ("model" in entry) == ("mutates" in entry):
        raise ManifestError(f"mistake {name}: has either a model or mutates")
    patches, first = _of_model(name, entry["model"], manifest) if "model" in entry else _own(entry)
    changes = apply_all(name, patches, modules)
    return Mutant(f"{KIND}.{name}", KIND, ", ".join(changes), "", entry["says"], changes, first)


def _of_model(name: str, model: str, manifest: Manifest) -> tuple[list[Patch], tuple[str, ...]]:
    found = manifest.models.get(model)
    if found is None or not found.mutates:
        raise ManifestError(f"mistake {name}: there is no mutant {model} in {manifest.path}")
    same = [each.name for each in manifest.models.values() if each.kind == "model" and _bounds(each) == _bounds(found)]
    return list(found.mutates), tuple(same[:1])


def _bounds(model: Model) -> tuple[object, ...]:
    return model.module, model.constants, model.definitions


def _own(entry: dict[str, Any]) -> tuple[list[Patch], tuple[str, ...]]:
    patches = [Patch(each["old"], each["new"], each["module"]) for each in entry["mutates"]]
    return patches, (entry["first"],) if "first" in entry else ()


def apply_all(name: str, patches: list[Patch], modules: Mapping[str, Module]) -> dict[str, str]:
    """The text of each module that `patches` change."""
    texts: dict[str, str] = {}
    for patch in patches:
        if patch.module not in modules:
            raise ManifestError(f"mistake {name}: there is no module {patch.module}")
        text = texts.get(patch.module, modules[patch.module].text)
        if (times := text.count(patch.old)) != 1 or patch.old == patch.new:
            raise ManifestError(
                f"mistake {name}: the text to replace is {times} times in {patch.module}, must be once and another "
                f"than its replacement:\n{patch.old}"
            )
        texts[patch.module] = text.replace(patch.old, patch.new)
    return texts
