"""All mutants of a specification: of the actions of its `Next` and of the properties that its models check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..manifest import Model
from .operators import Operators
from .rules import ActionMutants, Edit, apply_all, fairness, premises
from .syntax import Module, closure, parse, short_hash

NEXT = "Next"
#: at most so much of what is dropped is shown
_SHOWN = 110


@dataclass(frozen=True)
class Mutant:
    """A specification with a mistake: `changes` has the text of each module that differs."""

    name: str
    kind: str
    module: str
    operator: str
    says: str
    changes: Mapping[str, str]
    #: models that are likely to find the mistake, before all others
    first: tuple[str, ...] = ()
    edit: Edit | None = None
    #: whether it can do all steps that the specification can, and perhaps more
    adds: bool = False
    #: whether it demands all that the specification does, and perhaps more
    demands: bool = False

    @property
    def can_be_asked(self) -> bool:
        """Whether a model can be asked, about all such mutants at once, if the mutant changes anything in it."""
        return self.edit is not None and (self.adds or self.edit.assignment is not None)

    @property
    def is_of_protocol(self) -> bool:
        """Whether the protocol is mutated, and not what is said of it."""
        return self.kind not in ("premise", "fairness")


def generate(modules: Mapping[str, Module], models: Sequence[Model]) -> list[Mutant]:
    """The mutants of the modules that `models` check, in the order of the text. Raises where one cannot be read."""
    edits: dict[tuple[str, int, int, str], tuple[Edit, bool]] = {}
    for root in sorted({model.module for model in models}):
        operators = Operators(closure(modules, root))
        for edit, more in _edits(operators, [model for model in models if model.module == root]):
            place = operators.module_of[edit.operator].name, edit.start, edit.end, edit.new
            edits[place] = edit, more and edits.get(place, (edit, True))[1]
    names: Counter[str] = Counter()
    return [_mutant(modules[place[0]], *edits[place], names) for place in sorted(edits)]


def _edits(operators: Operators, models: Sequence[Model]) -> Iterator[tuple[Edit, bool]]:
    if NEXT in operators:
        actions = ActionMutants(operators)
        found = actions.of(NEXT)
        monotone = actions.monotone(NEXT)
        yield from ((edit, edit.kind == "guard" and edit.operator in monotone) for edit in found)
    properties = {name for model in models for name in (*model.invariants, *model.properties)}
    for edit in _said(operators, models, properties):
        yield edit, edit.demands and edit.operator in properties


def _said(operators: Operators, models: Sequence[Model], properties: Iterable[str]) -> Iterator[Edit]:
    acting = operators.reached([NEXT])
    yield from premises(operators, sorted(operators.reached(properties) - acting))
    specifications = {model.specification or "Spec" for model in models}
    yield from fairness(operators, sorted(operators.reached(specifications) - acting))


def _mutant(module: Module, edit: Edit, more: bool, names: Counter[str]) -> Mutant:
    text = edit.apply(module.text)
    parse(text, f"{module.name} without {edit.dropped!r}")
    name = f"{module.name}.{edit.operator}.{edit.kind}.{short_hash(f'{edit.content} {edit.new}')}"
    names[name] += 1
    if names[name] > 1:  # the same words twice in one operator
        name = f"{name}.{names[name]}"
    changes = {module.name: text}
    adds, demands = more and edit.kind == "guard", more and edit.kind == "premise"
    return Mutant(name, edit.kind, module.name, edit.operator, says(module, edit), changes, (), edit, adds, demands)


def joined(mutants: Iterable[Mutant], modules: Mapping[str, Module]) -> dict[str, str]:
    """The changes of all `mutants` at once: of such as only add steps, or only demand more."""
    edits: dict[str, list[Edit]] = {}
    for mutant in mutants:
        assert mutant.edit is not None
        edits.setdefault(mutant.module, []).append(mutant.edit)
    return {name: apply_all(found, modules[name].text) for name, found in edits.items()}


def says(module: Module, edit: Edit) -> str:
    """The mutant in a line."""
    dropped = edit.dropped if len(edit.dropped) <= _SHOWN else edit.dropped[: _SHOWN - 3] + "..."
    what = {
        "guard": f"without the guard  {dropped}",
        "update": f"{edit.new}  for  {dropped}",
        "component": f"does not set  {dropped}",
        "premise": f"without the premise  {dropped}",
        "fairness": f"without  {dropped}",
    }[edit.kind]
    return f"{edit.operator} ({module.name}): {what}"
