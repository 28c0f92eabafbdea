"""Which guards a step of a specification meets on its way through the operators that its action is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from .generator import Mutant
from .operators import Operators, is_conjunction, is_disjunction, operands
from .operators import reference as operator_of
from .syntax import kids, words

if TYPE_CHECKING:
    from tree_sitter import Node

#: a module, and the first and the last place of a part of its text
Part = tuple[str, int, int]


class Meetings:
    """How often one step may meet each guard that one of the `mutants` lacks, by the mutant's name."""

    def __init__(self, operators: Operators, mutants: Sequence[Mutant]) -> None:
        self._operators = operators
        #: the guards that a step does not meet which takes this alternative, though it may by taking another one
        self.passed_by: dict[Part, frozenset[str]] = {}
        self.guards: dict[Part, str] = {}
        for mutant in mutants:
            assert mutant.edit is not None
            self.guards[mutant.module, mutant.edit.start, mutant.edit.end] = mutant.name
        self.of_operator = cache(self._of_operator)

    def _of_operator(self, name: str) -> Counter[str]:
        if name not in self._operators:
            return Counter()
        return self.of(self._operators.module_of[name].name, self._operators[name].body)

    def of(self, module: str, node: Node) -> Counter[str]:
        """The guards in a part of a module's text and in what that refers to."""
        found = self._below(module, node)
        guard = self.guards.get((module, node.start_byte, node.end_byte))
        return found + Counter([guard]) if guard and not found[guard] else found

    def _below(self, module: str, node: Node) -> Counter[str]:
        if is_conjunction(node):
            return sum((self.of(module, part) for part in operands(node)), Counter())
        if used := operator_of(node):
            return self.of_operator(used)
        alternatives = _alternatives(node)
        found = [self.of(module, part) for part in alternatives]
        met: Counter[str] = Counter()
        for each in found:
            met |= each
        for part, each in zip(alternatives, found, strict=True):
            if passed := set(met) - set(each):
                self.passed_by[module, part.start_byte, part.end_byte] = frozenset(passed)
        return met + met if _may_repeat(node) else met


def _alternatives(node: Node) -> list[Node]:
    """The parts of `node` of which a step takes one, if it is no operator that is applied."""
    parts = kids(node)
    if is_disjunction(node):
        return operands(node)
    match node.type:
        case "parentheses":
            return [parts[1]]
        case "if_then_else":
            return parts[3::2]
        case "let_in" | "bounded_quantification":
            return parts[-1:]
    return [parts[2]] if node.type == "bound_infix_op" and parts[1].type == "implies" else []


def _may_repeat(node: Node) -> bool:
    """Whether a step goes through a part of `node` for each of several values, or perhaps not at all."""
    is_all = node.type == "bounded_quantification" and words(kids(node)[0]) == "\\A"
    return is_all or (node.type == "bound_infix_op" and kids(node)[1].type == "implies")
