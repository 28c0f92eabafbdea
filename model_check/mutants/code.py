"""Mutants of the code: slips of a concurrency change (`code.toml`), each as a replacement in the package's own text.

A mutant never touches a file: the process that tries it imports the changed text in the module's place.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import palimpsest

from ..errors import ManifestError

CATALOGUE = Path(__file__).resolve().parent / "code.toml"

#: a module below the package, a text that must be in it exactly once, and what is there instead
Edit = tuple[str, str, str]


@dataclass(frozen=True)
class CodeMutant:
    """One slip: what it changes, where exploring shows it, and what it breaks."""

    name: str
    says: str
    #: a property, or the kind of a finding ("deadlock", "exception") where it breaks no single one
    breaks: str
    #: scenarios of `palimpsest explore`, the likeliest first
    scenarios: tuple[str, ...]
    edits: tuple[Edit, ...]
    #: preemptions that it takes to show it
    bound: int = 1

    def texts(self) -> dict[str, str]:
        """The changed text of each module. Raises `ManifestError` where a text to replace is not there exactly once."""
        texts: dict[str, str] = {}
        for module, old, new in self.edits:
            text = texts.get(module) or file_of(module).read_text(encoding="utf-8")
            if text.count(old) != 1:
                raise ManifestError(f"code mutant {self.name}: {module} has {text.count(old)} times {old!r}, not once")
            texts[module] = text.replace(old, new)
        return texts


def load_code_mutants(path: Path = CATALOGUE) -> dict[str, CodeMutant]:
    """The mutants at `path`, by name. Raises `ManifestError`."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("slip", [])
    mutants = [_mutant(path, entry) for entry in entries]
    if twice := {each.name for each in mutants if sum(each.name == other.name for other in mutants) > 1}:
        raise ManifestError(f"{path}: more than one slip {', '.join(sorted(twice))}")
    return {mutant.name: mutant for mutant in mutants}


def _mutant(path: Path, entry: dict[str, Any]) -> CodeMutant:
    name = entry.get("name", "?")
    fields = {"name", "says", "breaks", "scenarios", "edits"}
    if set(entry) - {"bound"} != fields:
        raise ManifestError(f"{path}: slip {name} has {sorted(entry)}, and a slip has {sorted(fields)}")
    edits = tuple((each["in"], each["old"], each["new"]) for each in entry["edits"])
    return CodeMutant(name, entry["says"], entry["breaks"], tuple(entry["scenarios"]), edits, entry.get("bound", 1))


def file_of(module: str) -> Path:
    """The file of a module below the package, found without importing it."""
    return Path(palimpsest.__path__[0]).joinpath(*module.split(".")).with_suffix(".py")


class Patched(importlib.abc.MetaPathFinder):
    """Finds modules below the package with changed texts. Installed for the rest of the process."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = {f"{palimpsest.__name__}.{module}": text for module, text in texts.items()}

    def install(self) -> None:
        """From here on the texts are what is imported. None of the modules may have been imported before."""
        early = [name for name in self._texts if name in sys.modules]
        assert not early, f"{early} were imported before they were changed"
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader of the changed text."""
        if fullname not in self._texts:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._texts[fullname])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a text in a file's place."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  there is one
        """The changed text, compiled; nothing is cached."""
        return compile(self._text, self.path, "exec", dont_inherit=True)
