"""A folder with what TLC needs for one model: the modules, patched for a mutant, and the configuration."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .errors import ManifestError
from .manifest import Constant, Manifest, Model, Patch

#: the generated module and its configuration
NAME = "Checked"


def prepare(model: Model, manifest: Manifest, folder: Path) -> tuple[Path, Path]:
    """Fill `folder` for `model`; gives the module to check and its configuration.

    Raises `ManifestError` where the module is missing, or a patch does not fit the specification.
    """
    for source in (manifest.spec, manifest.path.parent):
        for module in source.glob("*.tla"):
            shutil.copy(module, folder)
    if not (folder / f"{model.module}.tla").is_file():
        raise ManifestError(f"model {model.name}: there is no {model.module}.tla in {manifest.spec}")
    for patch in model.mutates:
        apply(patch, model.name, folder)
    module, config = folder / f"{NAME}.tla", folder / f"{NAME}.cfg"
    module.write_text(wrapper(model), encoding="utf-8")
    config.write_text(configuration(model), encoding="utf-8")
    return module, config


def apply(patch: Patch, name: str, folder: Path) -> None:
    """Replace `patch.old` in its module below `folder`, where it must be exactly once."""
    module = folder / f"{patch.module}.tla"
    if not module.is_file():
        raise ManifestError(f"model {name}: mutates {patch.module}, and there is no such module")
    text = module.read_text(encoding="utf-8")
    if (times := text.count(patch.old)) != 1:
        raise ManifestError(
            f"model {name}: the text to replace is {times} times in {patch.module}.tla, and must be once:\n{patch.old}"
        )
    if patch.old == patch.new:
        raise ManifestError(f"model {name}: replaces a text by itself:\n{patch.old}")
    module.write_text(text.replace(patch.old, patch.new), encoding="utf-8")


def wrapper(model: Model) -> str:
    """The module that extends the model's one by its definitions."""
    definitions = "\n".join(f"{name} == {text.strip()}" for name, text in model.definitions.items())
    # TLC has what bounds need: Permutations, :> and @@
    return f"---- MODULE {NAME} ----\nEXTENDS {model.module}, TLC\n{definitions}\n====\n"


def configuration(model: Model) -> str:
    """TLC's configuration of `model`, the property that is expected to be violated first."""
    lines = ["CONSTANTS", *(f"  {_assignment(name, value)}" for name, value in model.constants.items())]
    if not model.constants:
        lines = []
    if model.init and model.next:
        lines += [f"INIT {model.init}", f"NEXT {model.next}"]
    else:
        lines.append(f"SPECIFICATION {model.specification or 'Spec'}")
    for keyword, names in _sections(model):
        lines += [f"{keyword} {name}" for name in names]
    return "\n".join([*lines, ""])


def _sections(model: Model) -> list[tuple[str, Sequence[str]]]:
    return [
        ("INVARIANT", _first(model.expect, model.invariants)),
        ("PROPERTY", _first(model.expect, model.properties)),
        ("CONSTRAINT", model.constraints),
        ("ACTION_CONSTRAINT", model.action_constraints),
        ("SYMMETRY", [model.symmetry] if model.symmetry else []),
        ("VIEW", [model.view] if model.view else []),
    ]


def _first(name: str, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda each: each != name)


def _assignment(name: str, value: Constant) -> str:
    if isinstance(value, str) and value.startswith("<-"):
        return f"{name} {value}"
    return f"{name} = {_literal(value)}"


def _literal(value: Constant) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case tuple():
            return "{" + ", ".join(value) + "}"
        case _:
            return str(value)
