"""Which mutants without a guard add steps to a model: all of them asked in one run of TLC.

A mutant without the guard `g` of an action adds the steps that the action can do where `g` is false and all else is
true. So each mutant has a number, and each `g` becomes `(probe' # number) = g`: the guard, but its negation where the
variable `probe` is given that number. The specification goes its way with 0, and in each state tries each action once
for each guard in it. A step found so is said, and not done; one that changes nothing does not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..output import SAYS
from .flat import Replacements, flat
from .generator import NEXT, Mutant
from .operators import Operators, is_conjunction, is_disjunction, operands
from .operators import reference as operator_of
from .syntax import Module, closure, kids, names_in, words

if TYPE_CHECKING:
    from tree_sitter import Node

INIT = "Init"
VARS = "vars"
_HEAD = """
EXTENDS {extends}
VARIABLE probe
Asked(mutant) == ~TLCGet(mutant) /\\ probe' = mutant
Found(mutant) == TLCSet(mutant, TRUE) /\\ PrintT("{says}" \\o ToString(mutant)) /\\ FALSE
ASSUME \\A mutant \\in 1..{count} : TLCSet(mutant, FALSE)
"""
_NEGATED = re.compile(r"\(probe' # (\d+)\)")
_QUESTION = re.compile(r"Asked\((\d+)\)")
#: where TLC says that it was when it could not evaluate something
_PLACES = (
    re.compile(r"Line (?P<line>\d+), column \d+ to line \d+, column \d+ in (?P<module>\w+)"),
    re.compile(r"line (?P<line>\d+), col \d+ to line \d+, col \d+ of module (?P<module>\w+)"),
)


@dataclass(frozen=True)
class Questions:
    """A specification that tries each of the `asked` mutants, by number, in each of its states."""

    changes: Mapping[str, str]
    asked: Mapping[int, Mutant]

    def failed(self, explanation: str) -> set[str]:
        """The mutants, by name, one of which was being tried when TLC could not evaluate something, by what it says."""
        lines = [
            self._line(match["module"], int(match["line"]))
            for place in _PLACES
            for match in place.finditer(explanation)
        ]
        for line in lines:
            if number := _QUESTION.search(line):
                return {self.asked[int(number[1])].name}
        inside = {int(number) for line in lines for number in _NEGATED.findall(line)}
        return {self.asked[number].name for number in inside}

    def _line(self, module: str, number: int) -> str:
        """A line of a module; as each definition that asks is one line, all of a definition."""
        lines = self.changes.get(module, "").splitlines()
        return lines[number - 1] if number <= len(lines) else ""


def questions(modules: Mapping[str, Module], root: str, mutants: Sequence[Mutant]) -> Questions:
    """The specification of `root`, asking for those of the `mutants` without a guard that can be asked for so.

    Not asked for is a guard that one step may meet several times, false at some and true at others.
    """
    operators = Operators(closure(modules, root))
    known = [each for each in mutants if each.adds and each.edit and each.module in operators.modules]
    met = Meetings(operators, known).of_operator(NEXT)
    asked = dict(enumerate((each for each in known if met[each.name] == 1), 1))
    texts = {name: _asking(module, operators, asked) for name, module in operators.modules.items()}
    return Questions(texts, asked)


class Meetings:
    """How often one step may meet each guard."""

    def __init__(self, operators: Operators, mutants: Sequence[Mutant]) -> None:
        self._operators = operators
        self._guards: dict[tuple[str, int, int], str] = {}
        for mutant in mutants:
            assert mutant.edit is not None
            self._guards[mutant.module, mutant.edit.start, mutant.edit.end] = mutant.name
        self.of_operator = cache(self._of_operator)

    def _of_operator(self, name: str) -> Counter[str]:
        if name not in self._operators:
            return Counter()
        return self._of(self._operators.module_of[name].name, self._operators[name].body)

    def _of(self, module: str, node: Node) -> Counter[str]:
        found = self._below(module, node)
        guard = self._guards.get((module, node.start_byte, node.end_byte))
        return found + Counter([guard]) if guard and not found[guard] else found

    def _below(self, module: str, node: Node) -> Counter[str]:
        if is_conjunction(node):
            return sum((self._of(module, part) for part in operands(node)), Counter())
        parts, total = _alternatives(node)
        found: Counter[str] = Counter()
        for part in parts:
            found |= self._of(module, part)
        if used := operator_of(node):
            found |= self.of_operator(used)
        return found + found if total else found


def _alternatives(node: Node) -> tuple[list[Node], bool]:
    """The parts of `node` of which a step takes one, and whether it must take that for several values."""
    parts = kids(node)
    if is_disjunction(node):
        return operands(node), False
    match node.type:
        case "parentheses":
            return [parts[1]], False
        case "let_in":
            return parts[-1:], False
        case "if_then_else":
            return parts[3::2], False
        case "bounded_quantification":
            return parts[-1:], parts[0].type == "forall" or words(parts[0]) == "\\A"
    return ([parts[2]], False) if node.type == "bound_infix_op" and parts[1].type == "implies" else ([], False)


def _asking(module: Module, operators: Operators, asked: Mapping[int, Mutant]) -> str:
    """The text of `module`, all definitions with guards that are asked for written anew."""
    own = {number: each for number, each in asked.items() if each.module == module.name}
    text = module.text
    for name, definition in sorted(module.definitions.items(), key=lambda each: -each[1].node.start_byte):
        body = definition.body
        if new := _body(name, body, operators, asked, own):
            text = f"{text[: body.start_byte]}{new}\n{text[body.end_byte :]}"
    return text if any(each in operators.modules for each in module.extends) else _headed(module, text, len(asked))


def _body(
    name: str, body: Node, operators: Operators, asked: Mapping[int, Mutant], own: Mapping[int, Mutant]
) -> str | None:
    inside = {number: each.edit for number, each in own.items() if each.operator == name and each.edit}
    replacements = {(edit.start, edit.end): _negated(number) for number, edit in inside.items()}
    match name:
        case "Next":
            return "\n".join(["", *_next(body, replacements, operators, asked)])
        case "Init":
            return f"({flat(body, replacements)}) /\\ probe = 0"
    return flat(body, replacements) if inside else None


def _negated(number: int) -> Callable[[str], str]:
    return lambda guard: f"((probe' # {number}) = ({guard}))"


def _next(body: Node, replacements: Replacements, operators: Operators, asked: Mapping[int, Mutant]) -> Iterator[str]:
    """The alternatives of `Next`: each as it is, and once for each guard in it that is asked for."""
    moved = f" /\\ {VARS}' # {VARS}" if VARS in operators else ""
    for part in operands(body) if is_disjunction(body) else [body]:
        action = flat(part, replacements)
        yield f"  \\/ (probe' = 0 /\\ ({action}))"
        for number in _met_in(part, operators, asked):
            yield f"  \\/ (Asked({number}) /\\ ({action}){moved} /\\ Found({number}))"


def _met_in(part: Node, operators: Operators, asked: Mapping[int, Mutant]) -> Iterator[int]:
    reached = operators.reached(names_in(part))
    for number, mutant in asked.items():
        assert mutant.edit is not None
        inside = mutant.operator == NEXT and part.start_byte <= mutant.edit.start < part.end_byte
        if inside or mutant.operator in reached:
            yield number


def _headed(module: Module, text: str, count: int) -> str:
    """The text of the module that extends no other of the specification, with what asking needs."""
    extends = ", ".join(dict.fromkeys((*module.extends, "Naturals", "TLC")))
    head = _HEAD.format(extends=extends, says=SAYS, count=count)
    extended = re.search(r"^EXTENDS\s+\w+(?:\s*,\s*\w+)*", text, re.MULTILINE)
    if extended is None:
        return text.replace("\n", head, 1)
    return text[: extended.start()] + head + text[extended.end() :]
