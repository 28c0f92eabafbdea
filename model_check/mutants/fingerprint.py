"""A key for what TLC is given: equal keys, equal verdicts. Comments, layout and what is not used do not count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tree_sitter import Node

from ..manifest import Model
from ..workspace import configuration, wrapper
from .syntax import Module, closure, content, names_in, parse, short_hash

_NAME = re.compile(r"[A-Za-z_]\w*")
_LENGTH = 16


class Fingerprints:
    """Keys of models of the specification `modules`, as it is or with some modules replaced."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._modules = modules
        self._reached: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def of(self, model: Model, changes: Mapping[str, str] | None = None) -> str:
        """The key of `model` where the modules of `changes` have another text."""
        replaced = {name: _parsed(text, name) for name, text in (changes or {}).items()}
        modules = {**self._modules, **replaced}
        own = _parsed(wrapper(model), f"the wrapper of {model.name}")
        used = {**closure(modules, model.module), own.name: own}
        said = configuration(model)
        parts = [said, str(model.deadlock), *_declared(used), *_reached(modules, used, set(_NAME.findall(said)))]
        return short_hash("\n".join(parts), _LENGTH)

    def leads_to(self, model: Model, module: str, name: str) -> bool:
        """Whether `model` uses the definition of `name` in a module: its key is another one if that changes."""
        used, names = self._reached_by(model)
        return module in names or (module in used and name in names)

    def _reached_by(self, model: Model) -> tuple[frozenset[str], frozenset[str]]:
        """The modules that `model` uses, and the names of definitions and of instances' modules that it leads to."""
        if model.name not in self._reached:
            own = _parsed(wrapper(model), f"the wrapper of {model.name}")
            used = {**closure(self._modules, model.module), own.name: own}
            found = _reached(self._modules, used, set(_NAME.findall(configuration(model))))
            self._reached[model.name] = frozenset(used), frozenset(line.split(" ", 1)[0] for line in found)
        return self._reached[model.name]


@lru_cache(maxsize=4096)
def _parsed(text: str, name: str) -> Module:
    return parse(text, name)


#: column and text of a definition -> its content and the names in it. A mutant leaves all but one as they are; what
#: the lines of a list belong to depends on their columns, but on nothing outside of the definition.
_definitions: dict[tuple[int, bytes | None], tuple[str, frozenset[str]]] = {}


def _definition(node: Node) -> tuple[str, frozenset[str]]:
    key = node.start_point.column, node.text
    if key not in _definitions:
        _definitions[key] = content(node), frozenset(names_in(node))
    return _definitions[key]


@lru_cache(maxsize=4096)
def _instance(text: str, module: str) -> str:
    """All of a module that an instance is made of: each definition counts."""
    whole = _parsed(text, module)
    return " ".join([*_declarations(text, module), *(_definition(each.node)[0] for each in whole.definitions.values())])


@lru_cache(maxsize=4096)
def _declarations(text: str, module: str) -> tuple[str, ...]:
    return tuple(f"{module} {content(part)}" for part in _parsed(text, module).declarations)


def _declared(used: Mapping[str, Module]) -> list[str]:
    return [line for name in sorted(used) for line in _declarations(used[name].text, used[name].name)]


def _reached(modules: Mapping[str, Module], used: Mapping[str, Module], names: set[str]) -> list[str]:
    """The definitions that `names` lead to; a module that one makes an instance of counts as a whole."""
    found: dict[str, str] = {}
    where = {name: module for module in used.values() for name in module.definitions}
    known = where.keys() | modules.keys() - used.keys()
    todo = names & known
    while todo:
        name = todo.pop()
        if name in where:
            found[name], next_names = _definition(where[name].definitions[name].node)
        else:
            found[name], next_names = _instance(modules[name].text, name), frozenset(modules[name].extends)
        todo |= (next_names & known) - found.keys()
    return [f"{name} {found[name]}" for name in sorted(found)]
