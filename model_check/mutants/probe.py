"""Which mutants change nothing in a model: all of them asked in one run of TLC.

A mutant without the guard `g` of an action adds the steps that the action can do where `g` is false and all else is
true. So each mutant has a number, and each `g` becomes `(probe' # number) = g`: the guard, but its negation where the
variable `probe` is given that number. The specification goes its way with 0, and in each state tries each action once
for each guard in it. A step found so is said, and not done; one that changes nothing does not count.

A mutant with another update matters where that update is come to, which it says when it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..output import SAYS
from .flat import Replacements, flat
from .generator import NEXT, Mutant
from .meetings import Meetings
from .operators import Operators, is_disjunction, operands
from .syntax import Module, closure

if TYPE_CHECKING:
    from tree_sitter import Node

INIT = "Init"
VARS = "vars"
_HEAD = """
EXTENDS {extends}
VARIABLE probe
ProbeAsks(mutant) == ~TLCGet(mutant) /\\ probe' = mutant
ProbeFound(mutant) == TLCSet(mutant, TRUE) /\\ PrintT("{says}" \\o ToString(mutant)) /\\ FALSE
ProbeMet(mutant) == probe' # 0 \\/ TLCGet(mutant) \\/ (TLCSet(mutant, TRUE) /\\ PrintT("{says}" \\o ToString(mutant)))
ASSUME \\A mutant \\in 1..{count} : TLCSet(mutant, FALSE)
"""
_NEGATED = re.compile(r"\(probe' # (\d+)\)")
_QUESTION = re.compile(r"ProbeAsks\((\d+)\)")
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
    """The specification of `root`, asking for those of the `mutants` that can be asked for so.

    Not asked for is a guard that one step may meet several times, false at some and true at others.
    """
    operators = Operators(closure(modules, root))
    known = [each for each in mutants if each.can_be_asked and each.module in operators.modules]
    meetings = Meetings(operators, [each for each in known if each.adds])
    met = meetings.of_operator(NEXT)
    asked = dict(enumerate((each for each in known if not each.adds or met[each.name] == 1), 1))
    texts = _Texts(operators, meetings, asked)
    return Questions({name: texts.of(module) for name, module in operators.modules.items()}, asked)


class _Texts:
    """Texts of modules in which guards are asked for, each by the number of its mutant."""

    def __init__(self, operators: Operators, meetings: Meetings, asked: Mapping[int, Mutant]) -> None:
        self._operators = operators
        self._meetings = meetings
        self._numbers = numbers = {each.name: number for number, each in asked.items()}
        self._changes: dict[str, dict[tuple[int, int], Callable[[str], str]]] = {}
        for (module, *place), name in meetings.guards.items():
            if number := numbers.get(name):
                self._change(module, place, f"((probe' # {number}) = ({{}}))")
        for (module, *place), names in meetings.passed_by.items():
            if others := sorted(numbers[name] for name in names if name in numbers):
                self._change(module, place, f"(probe' \\notin {{{{{', '.join(map(str, others))}}}}} /\\ ({{}}))")

        updates: dict[tuple[str, int, int], list[str]] = {}
        for number, mutant in asked.items():
            if mutant.edit is not None and mutant.edit.assignment is not None:
                updates.setdefault((mutant.module, *mutant.edit.assignment), []).append(f"ProbeMet({number})")
        for (module, *place), met in updates.items():
            self._change(module, place, "(" + r" /\ ".join([*met, "{}"]) + ")")

    def _change(self, module: str, place: Sequence[int], form: str) -> None:
        first, last = place
        self._changes.setdefault(module, {})[first, last] = form.format

    def of(self, module: Module) -> str:
        """The text of `module`, each definition that asks on one line."""
        text = module.text
        for name, definition in sorted(module.definitions.items(), key=lambda each: -each[1].node.start_byte):
            body = definition.body
            if new := self._body(module.name, name, body):
                text = f"{text[: body.start_byte]}{new}\n{text[body.end_byte :]}"
        if any(each in self._operators.modules for each in module.extends):
            return text
        return _headed(module, text, len(self._numbers))

    def _body(self, module: str, name: str, body: Node) -> str | None:
        changes = self._changes.get(module, {})
        if name == NEXT:
            return "\n".join(["", *self._next(module, body, changes)])
        if name == INIT:
            return f"({flat(body, {})}) /\\ probe = 0"
        is_changed = any(body.start_byte <= first and last <= body.end_byte for first, last in changes)
        return flat(body, changes) if is_changed else None

    def _next(self, module: str, body: Node, changes: Replacements) -> Iterator[str]:
        """The alternatives of `Next`: each as it is, and once for each guard in it that is asked for."""
        moved = f" /\\ {VARS}' # {VARS}" if VARS in self._operators else ""
        for part in operands(body) if is_disjunction(body) else [body]:
            action = flat(part, changes)
            yield f"  \\/ (probe' = 0 /\\ ({action}))"
            for name in self._meetings.of(module, part):
                if number := self._numbers.get(name):
                    yield f"  \\/ (ProbeAsks({number}) /\\ ({action}){moved} /\\ ProbeFound({number}))"


def _headed(module: Module, text: str, count: int) -> str:
    """The text of the module that extends no other of the specification, with what asking needs."""
    extends = ", ".join(dict.fromkeys((*module.extends, "Naturals", "Sequences", "TLC")))
    head = _HEAD.format(extends=extends, says=SAYS, count=count)
    extended = re.search(r"^EXTENDS\s+\w+(?:\s*,\s*\w+)*", text, re.MULTILINE)
    if extended is None:
        return text.replace("\n", head, 1)
    return text[: extended.start()] + head + text[extended.end() :]
