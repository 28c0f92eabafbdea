"""Why mutants may survive and why a property may kill none alone: the reasons in `survivors.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ManifestError

SURVIVORS = Path(__file__).resolve().parent / "survivors.toml"


@dataclass(frozen=True)
class Explained:
    """Reasons, by the name of a mutant and by that of a property."""

    mutants: Mapping[str, str]
    properties: Mapping[str, str]


def load_explained(path: Path = SURVIVORS) -> Explained:
    """The reasons at `path`. Raises where one has no text or a name has two."""
    data = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if unknown := set(data) - {"survivor", "property"}:
        raise ManifestError(f"{path}: unknown table {', '.join(sorted(unknown))}")
    pairs = [(name, entry.get("why", "")) for entry in data.get("survivor", []) for name in entry.get("mutants", [])]
    named = [(entry.get("name", "?"), entry.get("why", "")) for entry in data.get("property", [])]
    return Explained(_reasons(path, pairs), _reasons(path, named))


def _reasons(path: Path, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for name, why in pairs:
        if not why.strip():
            raise ManifestError(f"{path}: {name} has no reason")
        if name in reasons:
            raise ManifestError(f"{path}: {name} has two reasons")
        reasons[name] = why
    return reasons
