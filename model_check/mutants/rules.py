"""The mutants of a syntax tree, by rule.

- guard: a conjunct of an action that changes nothing is dropped. Also inside of its alternatives and of the
  operators that it is made of, but not under a negation, where dropping a conjunct forbids instead of allowing.
  A bare constant (a switch of the environment) is the model's and stays.
- update: `x' = e` becomes `x' = x`. Where an operator does nothing but assign, each use of it is a mutant.
- component: one `![i] = e` of an EXCEPT that has several is dropped.
- premise: a conjunct on the left of `=>` is dropped in a property: it must have been needed.
- fairness: a `WF_` or `SF_` is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .operators import Operators, Scope, assignment, conjuncts, is_conjunction, is_disjunction, local, operands
from .operators import reference as operator_of
from .syntax import content, kids, walk, words

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Edit:
    """A change of the text of one operator: `new` between two places, and how the tree said it."""

    kind: str
    operator: str
    start: int
    end: int
    new: str
    dropped: str
    content: str
    #: the assignment that the edit is, or is a part of: before it is evaluated the edit does not matter
    assignment: tuple[int, int] | None = None
    #: whether a premise is one of its property itself, which can only say more without it
    demands: bool = False

    def apply(self, text: str) -> str:
        """The mutated text: what is dropped leaves blanks, so that all that is aligned stays so."""
        blank = "".join("\n" if char == "\n" else " " for char in text[self.start : self.end])
        return text[: self.start] + self.new + blank[len(self.new) :] + text[self.end :]


def apply_all(edits: Iterable[Edit], text: str) -> str:
    """The text with all `edits`; one that lies inside of another is part of it."""
    done = len(text)
    outer: list[Edit] = []
    for edit in sorted(edits, key=lambda each: (each.start, -each.end)):
        if not outer or edit.start >= outer[-1].end:
            outer.append(edit)
    for edit in reversed(outer):
        assert edit.end <= done
        text, done = edit.apply(text), edit.start
    return text


def _edit(kind: str, operator: str, node: Node, new: str, end: Node | None = None) -> Edit:
    whole = {"update": node, "component": _assigned(node)}.get(kind)
    place = (whole.start_byte, whole.end_byte) if whole else None
    return Edit(kind, operator, node.start_byte, (end or node).end_byte, new, words(node), content(node), place)


def _assigned(node: Node) -> Node | None:
    """The assignment that `node` is a part of."""
    above = node.parent
    return above if above is None or assignment(above) else _assigned(above)


class ActionMutants:
    """Guards and updates of the actions `Next` is made of, and of all operators that these are made of."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self._seen: set[str] = set()
        self._todo: list[str] = []
        self._edits: list[Edit] = []
        self._positive: Counter[tuple[str, str]] = Counter()

    def of(self, root: str) -> list[Edit]:
        """All edits below the operator `root`."""
        self._enter("", root)
        while self._todo:
            name = self._todo.pop(0)
            body = self._operators[name].body
            self._visit(name, body, {}, False)
            if self._operators.changes(body, {}):
                self._edits += _components(name, self._operators[name].node)
        return self._edits

    def monotone(self, root: str) -> set[str]:
        """The operators of which more truth can only mean more steps: all that use them use them so."""
        acting = self._operators.reached([root])
        uses = Counter(
            (user, words(each))
            for user in acting
            for each in walk(self._operators[user].body)
            if each.type == "identifier_ref" and words(each) in acting
        )
        wrong = {used for (user, used), times in uses.items() if times != self._positive[user, used]}
        while more := {used for user, used in uses if user in wrong} - wrong:
            wrong |= more
        return acting - wrong

    def _enter(self, user: str, name: str) -> None:
        self._positive[user, name] += 1
        if name in self._operators and name not in self._seen:
            self._seen.add(name)
            self._todo.append(name)

    def _visit(self, name: str, node: Node, scope: Scope, droppable: bool) -> None:
        if is_conjunction(node):
            for part in operands(node):
                self._visit(name, part, scope, True)
        elif node.type == "parentheses":
            self._visit(name, kids(node)[1], scope, droppable)
        else:
            if droppable and not self._operators.changes(node, scope) and words(node) not in self._operators.constants:
                self._edits.append(_edit("guard", name, node, "TRUE"))
            self._update(name, node)
            self._below(name, node, scope)

    def _below(self, name: str, node: Node, scope: Scope) -> None:
        """What is inside of a conjunct, at places where more truth means more steps."""
        if is_disjunction(node):
            for part in operands(node):
                self._visit(name, part, scope, False)
        elif node.type == "let_in":
            self._visit(name, kids(node)[-1], local(node, scope), False)
        elif node.type in ("bounded_quantification", "if_then_else"):
            for part in kids(node)[-1:] if node.type == "bounded_quantification" else kids(node)[3::2]:
                self._visit(name, part, scope, False)
        elif node.type == "bound_infix_op" and kids(node)[1].type == "implies":
            self._visit(name, kids(node)[2], scope, False)
        elif (used := operator_of(node)) and used not in scope:
            self._enter(name, used)

    def _update(self, name: str, node: Node) -> None:
        if (found := assignment(node)) and not self._is_only(name, node):
            variable, right = found
            if words(right) != variable:
                self._edits.append(_edit("update", name, node, f"{variable}' = {variable}"))
        elif variables := self._operators.assigned(operator_of(node) or ""):
            same = " /\\ ".join(f"{each}' = {each}" for each in variables)
            self._edits.append(_edit("update", name, node, f"({same})" if len(variables) > 1 else same))

    def _is_only(self, name: str, node: Node) -> bool:
        """Whether the operator is this assignment and no more: its uses are mutated instead."""
        return conjuncts(self._operators[name].body) == [node] and len(self._operators.assigned(name)) == 1


def _components(name: str, node: Node) -> Iterator[Edit]:
    for each in walk(node):
        parts = kids(each)
        updates = [index for index, part in enumerate(parts) if part.type == "except_update"]
        if each.type == "except" and len(updates) > 1:
            for index in updates:
                last = index == updates[-1]
                found = _edit("component", name, parts[index - 1 if last else index], "", parts[index + (not last)])
                part = parts[index]
                yield replace(found, dropped=words(part), content=content(part))


def premises(operators: Operators, names: Iterable[str]) -> Iterator[Edit]:
    """The premises of the operators `names`."""
    for name in names:
        for each in walk(operators[name].body):
            if each.type == "bound_infix_op" and kids(each)[1].type == "implies":
                for part in conjuncts(kids(each)[0]):
                    yield replace(_edit("premise", name, part, "TRUE"), demands=_is_demanded(each))


def _is_demanded(node: Node) -> bool:
    """Whether the definition that `node` is in is false where `node` is, if it speaks of it at all."""
    above = node.parent
    if above is None or above.type == "operator_definition":
        return True
    parts = kids(above)
    if above.type == "bound_infix_op":
        allowed = is_conjunction(above) or is_disjunction(above) or (parts[1].type == "implies" and parts[2] == node)
    elif above.type in ("let_in", "bounded_quantification"):
        allowed = parts[-1] == node
    else:
        allowed = above.type in _TRANSPARENT or (above.type == "bound_prefix_op" and parts[0].type == "always")
    return allowed and _is_demanded(above)


_TRANSPARENT = ("conj_list", "conj_item", "disj_list", "disj_item", "parentheses", "step_expr_or_stutter")


def fairness(operators: Operators, names: Iterable[str]) -> Iterator[Edit]:
    """What the operators `names` say of fairness."""
    for name in names:
        for each in walk(operators[name].body):
            if each.type == "fairness":
                yield _edit("fairness", name, each, "TRUE")
