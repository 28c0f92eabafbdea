"""The manifest of the models: what each is for, its bounds, and what must come out (see `models/README.md`)."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .errors import ManifestError
from .jvm import LARGE, SMALL, Heap
from .places import MANIFEST, spec_folder

OK = "ok"
DEADLOCK = "Deadlock"

_KINDS = ("model", "reach", "mutant")
#: each has the models of those before it, but for `random`, whose models are for simulation only
_SETS = ("quick", "full", "deep", "random")
_SIZES = ("small", "large")
_LIMIT_S = {"small": 900.0, "large": 7200.0}
#: what a model says for itself, whatever its base says
_OWN = frozenset({"name", "kind", "purpose", "expect", "states", "mutates", "kills", "without", "base"})
#: a mutant once more, without the property that kills it: derived from its `without`
WITHOUT = "without"
_MERGED = ("constants", "definitions")

Constant = int | bool | str | tuple[str, ...]


@dataclass(frozen=True)
class Patch:
    """A replacement in a module of the specification."""

    old: str
    new: str
    module: str


@dataclass(frozen=True)
class Model:
    """One entry of the manifest, with all that it takes from its base."""

    name: str
    purpose: str
    module: str
    kind: str = "model"
    expect: str = OK
    set: str = "quick"
    size: str = "small"
    states: int | None = None
    specification: str | None = None
    init: str | None = None
    next: str | None = None
    invariants: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    action_constraints: tuple[str, ...] = ()
    symmetry: str | None = None
    view: str | None = None
    deadlock: bool = False
    limit_s: float = 0.0
    constants: Mapping[str, Constant] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    mutates: tuple[Patch, ...] = ()
    kills: str | None = None
    #: a mutant's verdict where the property that kills it is not checked, and all others of its model are
    without: str | None = None

    @property
    def heap(self) -> Heap:
        """The memory and the collector that fit its size."""
        return LARGE if self.is_large else SMALL

    @property
    def is_large(self) -> bool:
        """Whether it is checked alone, with all workers."""
        return self.size == "large"


@dataclass(frozen=True)
class Manifest:
    """All models, by name, and who does an action that several threads may do."""

    path: Path
    spec: Path
    models: Mapping[str, Model]
    threads: Mapping[str, str] = field(default_factory=dict)

    def select(self, names: Sequence[str] = (), which: str | None = None) -> list[Model]:
        """The models named; else those of the set `which`, with those of the smaller sets; else all."""
        if unknown := [name for name in names if name not in self.models]:
            raise ManifestError(f"no model {', '.join(unknown)} in {self.path}; there are {', '.join(self.models)}")
        if names:
            return [self.models[name] for name in dict.fromkeys(names)]
        included = _SETS if which is None else (which,) if which == "random" else _SETS[: _SETS.index(which) + 1]
        return [model for model in self.models.values() if model.set in included]


def load_manifest(path: Path = MANIFEST, spec: Path | None = None) -> Manifest:
    """The manifest at `path`, for the specification in the folder `spec`; raises where an entry is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ManifestError(f"there is no manifest {path}") from error
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: {error}") from error
    if unknown := set(data) - {"model", "threads"}:
        raise ManifestError(f"{path}: unknown table {', '.join(sorted(unknown))}")
    entries = _by_name(path, data.get("model", []))
    models = {name: _read(f"{path}: model {name}", _with_base(path, entries, name)) for name in entries}
    models |= {each.name: each for each in [_without(entries, models, name) for name in entries] if each is not None}
    return Manifest(path, spec or spec_folder(), models, data.get("threads", {}))


def _without(entries: dict[str, dict[str, Any]], models: dict[str, Model], name: str) -> Model | None:
    """The model that shows a mutant's `without`, with all that the model which it is a mutant of checks."""
    mutant = models[name]
    if mutant.without is None:
        return None
    base = models[name]
    while base.kind != "model":
        base = models[entries[base.name]["base"]]
    return replace(
        mutant,
        name=f"{name}-without",
        kind=WITHOUT,
        purpose=f"{name}, where {mutant.kills} is not checked.",
        set="full",
        expect=mutant.without,
        invariants=tuple(each for each in base.invariants if each != mutant.kills),
        properties=tuple(each for each in base.properties if each != mutant.kills),
        deadlock=base.deadlock and mutant.kills != DEADLOCK,
        kills=None,
        without=None,
    )


def _by_name(path: Path, entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = Counter(str(entry.get("name")) for entry in entries)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ManifestError(f"{path}: more than one model {', '.join(twice)}")
    return {str(entry.get("name")): entry for entry in entries}


def _with_base(
    path: Path, entries: dict[str, dict[str, Any]], name: str, above: tuple[str, ...] = ()
) -> dict[str, Any]:
    if name not in entries or name in above:
        why = "bases go in a circle" if name in above else f"there is no base {name}"
        raise ManifestError(f"{path}: model {above[0]}: {why}")
    entry = entries[name]
    if "base" not in entry:
        return entry
    base = _with_base(path, entries, entry["base"], (*above, name))
    merged = {each: {**base.get(each, {}), **entry.get(each, {})} for each in _MERGED}
    return {**{key: value for key, value in base.items() if key not in _OWN}, **entry, **merged}


def _read(where: str, entry: dict[str, Any]) -> Model:
    known = {each.name for each in fields(Model)} | {"base"}
    if unknown := set(entry) - known:
        raise ManifestError(f"{where}: unknown key {', '.join(sorted(unknown))}")
    if missing := [key for key in ("name", "purpose", "module") if not entry.get(key)]:
        raise ManifestError(f"{where}: has no {', '.join(missing)}")
    values = {key: _value(where, key, value) for key, value in entry.items() if key != "base"}
    values["mutates"] = tuple(_patch(where, each, entry["module"]) for each in entry.get("mutates", []))
    values.setdefault("expect", entry.get("kills", OK))
    values.setdefault("limit_s", _LIMIT_S.get(entry.get("size", "small"), 0.0))
    model = Model(**values)
    _check(where, model)
    return model


#: the TOML types of keys that are no text
_TYPES: dict[str, type | tuple[type, ...]] = {
    "states": int,
    "deadlock": bool,
    "limit_s": (int, float),
    "definitions": dict,
    "mutates": list,
}
_LISTS = frozenset({"invariants", "properties", "constraints", "action_constraints"})


def _value(where: str, key: str, value: Any) -> Any:
    if key in _LISTS:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ManifestError(f"{where}: {key} must be an array of names, and is {value!r}")
        return tuple(value)
    if key == "constants":
        return {name: _constant(where, name, each) for name, each in value.items()}
    if not isinstance(value, _TYPES.get(key, str)) or (key == "states" and isinstance(value, bool)):
        raise ManifestError(f"{where}: {key} is {value!r}, which is not of its type")
    return value


def _constant(where: str, name: str, value: Any) -> Constant:
    if isinstance(value, list):
        return tuple(str(each) for each in value)
    if not isinstance(value, int | bool | str):
        raise ManifestError(f"{where}: the constant {name} is {value!r}, which TLC's configuration cannot say")
    return value


def _patch(where: str, entry: dict[str, Any], module: str) -> Patch:
    if not {"old", "new"} <= set(entry) <= {"old", "new", "module"} or not entry["old"].strip():
        raise ManifestError(f"{where}: each of mutates has old, new and perhaps module, not {sorted(entry)}")
    return Patch(entry["old"], entry["new"], entry.get("module", module))


def _check(where: str, model: Model) -> None:
    for key, allowed in (("kind", _KINDS), ("set", _SETS), ("size", _SIZES)):
        if (value := getattr(model, key)) not in allowed:
            raise ManifestError(f"{where}: {key} is {value!r}, and must be one of {', '.join(allowed)}")
    for wrong, says in _rules(model):
        if wrong:
            raise ManifestError(f"{where}: {says}")


def _rules(model: Model) -> list[tuple[bool, str]]:
    checked = {*model.invariants, *model.properties, *([DEADLOCK] if model.deadlock else [])}
    mutant = model.kind == "mutant"
    return [
        ((model.init is None) != (model.next is None), "init and next come together"),
        (bool(model.init and model.specification), "has a specification and an init"),
        (not checked, "checks nothing: no invariants, no properties, no deadlock"),
        (mutant and not model.kills, "is a mutant and does not say which property kills it"),
        (mutant and not model.mutates, "is a mutant and mutates nothing"),
        (not mutant and bool(model.kills or model.mutates), "only a mutant has kills and mutates"),
        (not mutant and model.without is not None, "only a mutant has without"),
        (bool(model.without) and model.without == model.kills, "is killed by what is not checked without it"),
        (bool(model.kills) and model.expect != model.kills, "expects another verdict than what kills it"),
        (model.kind == "reach" and model.expect == OK, "is a reach model, which must fail, and expects ok"),
        (model.expect != OK and model.expect not in checked, f"expects {model.expect}, which it does not check"),
        (model.expect != OK and model.states is not None, "has states, which are compared only where ok is expected"),
        (bool(model.symmetry and model.properties), "symmetry and properties do not go together in TLC"),
    ]
