"""The protocol as a tree of files says it: actions, properties, other definitions, life cycles, models, verdicts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckError, ManifestError
from ..manifest import Manifest, Model, load_manifest
from ..mutants.fingerprint import Fingerprints
from ..mutants.operators import Operators, assignment, conjuncts, is_disjunction, operands
from ..mutants.syntax import Module, closure, content, kids, load, words
from ..mutants.verdicts import Record, load_verdicts

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Part:
    """One thing of the protocol: equal contents, the same thing. `lines` are what it is made of, for showing."""

    content: str
    lines: tuple[str, ...] = ()


Parts = Mapping[str, Part]


@dataclass(frozen=True)
class Protocol:
    """All of it, each kind by name."""

    kinds: Mapping[str, Parts]
    #: of what TLC is given for each model
    keys: Mapping[str, str]
    models: Mapping[str, Model]
    mutants: Mapping[str, Record]

    @classmethod
    def of(cls, tree: Path) -> Protocol:
        """The protocol in a folder. Raises `CheckError` where something in it cannot be read."""
        spec = load(tree / "spec")
        manifest = _manifest(tree)
        modules = {**spec, **(load(manifest.path.parent) if manifest else {})}
        models = manifest.models if manifest else {}
        checked = {name for model in models.values() for name in (*model.invariants, *model.properties)}
        actions, definitions = _split(spec)
        properties = {name: part for name, part in definitions.items() if name.split(".")[1] in checked}
        kinds = {
            "action": actions,
            "property": properties,
            "definition": {name: part for name, part in definitions.items() if name not in properties},
            "transition": dict(_transitions(tree / "impl/palimpsest/lifecycle.py")),
            "action of the code": dict(_registry(tree / "impl/palimpsest/actions.py")),
            "model": {name: _model(model) for name, model in models.items()},
        }
        fingerprints = Fingerprints(modules)
        keys = {name: fingerprints.of(model) for name, model in models.items()}
        return cls(kinds, keys, models, _verdicts(tree))


def _verdicts(tree: Path) -> Mapping[str, Record]:
    """None where another version of the checker wrote them, in another form."""
    try:
        return load_verdicts(tree / "model_check/mutants/verdicts.json").mutants
    except ManifestError:
        return {}


def _manifest(tree: Path) -> Manifest | None:
    path = tree / "model_check/models/manifest.toml"
    return load_manifest(path, tree / "spec") if path.is_file() else None


def _split(modules: Mapping[str, Module]) -> tuple[dict[str, Part], dict[str, Part]]:
    """The actions, which are what `Next` is made of and changes variables, and all other definitions."""
    actions: dict[str, Part] = {}
    for root, module in modules.items():
        if "Next" not in module.definitions:
            continue
        operators = Operators(closure(modules, root))
        for name in operators.reached(["Next"]):
            found = operators[name]
            if operators.changes(found.body, {}):
                at = f"{operators.module_of[name].name}.{name}"
                actions[at] = Part(content(found.node), tuple(_lines(operators, found.body)))
    others = {
        f"{module.name}.{name}": Part(content(each.node), (words(each.body),))
        for module in modules.values()
        for name, each in module.definitions.items()
    }
    return actions, {name: part for name, part in others.items() if name not in actions}


def _lines(operators: Operators, node: Node) -> Iterator[str]:
    """Guards and updates of an action, through its quantifiers and alternatives."""
    for part in conjuncts(node):
        if (found := assignment(part)) is not None:
            yield f"update {found[0]}' = {words(found[1])}"
        elif part.type == "bounded_quantification":
            yield f"choice {words(part).split(' : ')[0]}"
            yield from _lines(operators, kids(part)[-1])
        elif is_disjunction(part) and operators.changes(part, {}):
            for each in operands(part):
                yield from _lines(operators, each)
        else:
            yield f"{'update' if operators.changes(part, {}) else 'guard'} {words(part)}"


def _model(model: Model) -> Part:
    lines = [model.purpose, f"{model.kind}, {model.set}, {model.size}", f"expect {model.expect}"]
    lines += [f"states {model.states}", *(f"checks {name}" for name in (*model.invariants, *model.properties))]
    lines += [f"{name} = {value}" for name, value in model.constants.items()]
    lines += [f"replaces {patch.old.strip()} by {patch.new.strip()}" for patch in model.mutates]
    return Part(repr(model), tuple(lines))


def _transitions(path: Path) -> Iterator[tuple[str, Part]]:
    """Each (trigger, source, destination) of each life cycle, from the text of the declarations."""
    for call in _calls(path, "Lifecycle"):
        fields = {each.arg: each.value for each in call.keywords}
        name = _literal(path, fields["name"])
        for trigger, sources, dest in _literal(path, fields["transitions"]):
            for source in sources:
                said = f"{source} -> {dest}"
                yield f"{name}.{trigger}: {said}", Part(said)


def _registry(path: Path) -> Iterator[tuple[str, Part]]:
    """Each action of the code, as the registry's text says it."""
    for call in _calls(path, "Action"):
        shown = tuple(ast.unparse(each) for each in (*call.args[1:], *call.keywords))
        names = ("threads", "lock", "does")
        lines = (f"{name} {value}" for name, value in zip(names, shown, strict=False))
        yield _literal(path, call.args[0]), Part(" ".join(shown), tuple(lines))


def _calls(path: Path, name: str) -> Iterator[ast.Call]:
    if not path.is_file():
        return
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise CheckError(f"{path.name} is no Python: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _literal(path: Path, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise CheckError(f"{path.name}:{node.lineno}: a declaration that is not plain data: {error}") from error
