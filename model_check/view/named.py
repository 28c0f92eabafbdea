"""The variables of the specification that a property speaks of, through the definitions that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ToolMissingError
from ..mutants.syntax import Module, closure, load, names_in, words
from ..places import spec_folder

if TYPE_CHECKING:
    from tree_sitter import Node


def variables_of(name: str, folder: Path | None = None) -> tuple[str, ...]:
    """The variables that the property `name` speaks of, in the order of their declarations; none where no module
    defines it, or where syntax trees cannot be had."""
    try:
        modules = _modules(folder or spec_folder())
    except ToolMissingError:
        return ()
    module = next((each for each in modules.values() if name in each.definitions), None)
    if module is None:
        return ()
    used = closure(modules, module.name)
    variables = [name for each in used.values() for part in each.declarations for name in _variables(part)]
    definitions = {name: each for mod in used.values() for name, each in mod.definitions.items()}
    seen, todo = set[str](), [name]
    while todo:
        if (each := todo.pop()) not in seen:
            seen.add(each)
            todo += names_in(definitions[each].body) if each in definitions else ()
    return tuple(variable for variable in dict.fromkeys(variables) if variable in seen)


@cache
def _modules(folder: Path) -> Mapping[str, Module]:
    return load(folder)


def _variables(part: Node) -> list[str]:
    if part.type != "variable_declaration":
        return []
    return [words(child) for child in part.children if child.type == "identifier"]
