"""The operators of a specification: what each refers to, and which of them change variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .syntax import Definition, Module, definition, kids, names_in, walk, words

if TYPE_CHECKING:
    from tree_sitter import Node

Scope = Mapping[str, Definition]


class Operators:
    """All operators of some modules that extend one another; a local one is looked up in its scope first."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.module_of = {name: module for module in modules.values() for name in module.definitions}
        self.constants = frozenset().union(*(module.constants for module in modules.values()))
        self._changing: dict[str, bool] = {}

    def __getitem__(self, name: str) -> Definition:
        return self.module_of[name].definitions[name]

    def __contains__(self, name: str) -> bool:
        return name in self.module_of

    def reached(self, names: Iterable[str]) -> set[str]:
        """The operators named, and all that their definitions refer to."""
        found: set[str] = set()
        todo = [name for name in names if name in self]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += [each for each in names_in(self[name].body) if each in self]
        return found

    def changes(self, node: Node, scope: Scope) -> bool:
        """Whether a variable is primed, or said to be unchanged, below `node` or in what it refers to."""
        return any(self._marks(each, scope) for each in walk(node))

    def _marks(self, node: Node, scope: Scope) -> bool:
        if node.type in ("prime", "unchanged"):
            return True
        if node.type != "identifier_ref":
            return False
        name = words(node)
        if name in scope:
            return self.changes(scope[name].body, {each: scope[each] for each in scope if each != name})
        if name in self and name not in self._changing:
            self._changing[name] = False  # for an operator that refers to itself
            self._changing[name] = self.changes(self[name].body, {})
        return self._changing.get(name, False)

    def assigned(self, name: str) -> list[str]:
        """The variables of an operator that does nothing but assign: `Release == lock' = ...`; else none."""
        found = [assignment(each) for each in conjuncts(self[name].body)] if name in self else []
        return [each[0] for each in found if each] if all(found) else []


def assignment(node: Node) -> tuple[str, Node] | None:
    """The variable and the right side of `x' = e`."""
    parts = kids(node)
    if node.type != "bound_infix_op" or len(parts) < 3 or parts[1].type != "eq" or parts[0].type != "bound_postfix_op":
        return None
    left = kids(parts[0])
    return (words(left[0]), parts[2]) if left[1].type == "prime" and left[0].type == "identifier_ref" else None


def is_conjunction(node: Node) -> bool:
    """Whether `node` is a list of conjuncts, or `a /\\ b`."""
    return node.type == "conj_list" or (node.type == "bound_infix_op" and kids(node)[1].type == "land")


def is_disjunction(node: Node) -> bool:
    """Whether `node` is a list of alternatives, or `a \\/ b`."""
    return node.type == "disj_list" or (node.type == "bound_infix_op" and kids(node)[1].type == "lor")


def operands(node: Node) -> list[Node]:
    """The parts of a conjunction or disjunction."""
    if node.type in ("conj_list", "disj_list"):
        return [kids(item)[-1] for item in kids(node)]
    return [kids(node)[0], kids(node)[2]]


def conjuncts(node: Node) -> list[Node]:
    """All that `node` joins by `and`, through parentheses and the body of a LET."""
    if node.type in ("parentheses", "let_in"):
        return conjuncts(kids(node)[1 if node.type == "parentheses" else -1])
    return [each for part in operands(node) for each in conjuncts(part)] if is_conjunction(node) else [node]


def local(node: Node, scope: Scope) -> Scope:
    """`scope` and the definitions of the LET `node`."""
    own = [definition(child) for child in kids(node) if child.type.endswith("_definition")]
    return {**scope, **{each.name: each for each in own}}


def reference(node: Node) -> str | None:
    """The operator that `node` is an application of."""
    name = kids(node)[0] if node.type == "bound_op" else node
    return words(name) if name.type == "identifier_ref" else None
