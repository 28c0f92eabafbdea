"""Modules of TLA+ as syntax trees: their definitions, what these refer to, and which of them change variables."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckError, ToolMissingError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_DEFINITIONS = ("operator_definition", "function_definition", "module_definition")
_DECLARATIONS = ("constant_declaration", "variable_declaration", "assumption", "recursive_declaration", "instance")
_COMMENTS = ("comment", "block_comment", "extramodular_text", "single_line", "double_line", "header_line")


@dataclass(frozen=True)
class Definition:
    """An operator: `body` is what comes after `==`."""

    name: str
    node: Node
    body: Node


@dataclass(frozen=True)
class Module:
    """A module's text and what is in it."""

    name: str
    text: str
    extends: tuple[str, ...]
    definitions: Mapping[str, Definition]
    declarations: tuple[Node, ...]
    constants: frozenset[str]


@cache
def _parser() -> Parser:
    try:
        from tree_sitter import Language, Parser
        from tree_sitter_tlaplus import language
    except ImportError as error:
        raise ToolMissingError(
            f"mutants are made of syntax trees, and {error.name} is not installed; "
            f"`pip install 'palimpsest-cache[mutants]'`"
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the grammar hands its address over in the older way
        return Parser(Language(language()))


def parse(text: str, name: str = "the text") -> Module:
    """The module in `text`, which must be ASCII, so that places in its tree are places in the text."""
    if not text.isascii():
        raise CheckError(f"{name}: mutants are made of ASCII modules only")
    root = _parser().parse(text.encode()).root_node
    if root.has_error:
        raise CheckError(f"{name}: not a module of TLA+ that can be read: {_first_error(root)}")
    module = next((child for child in root.children if child.type == "module"), None)
    if module is None:
        raise CheckError(f"{name}: there is no module in it")
    return _module(module, text)


def _first_error(root: Node) -> str:
    wrong = next((node for node in walk(root) if node.is_error or node.is_missing), root)
    return f"line {wrong.start_point[0] + 1}: {words(wrong)[:60]}"


def _module(node: Node, text: str) -> Module:
    parts = node.children
    extends = [words(each) for part in parts if part.type == "extends" for each in part.children if _is_name(each)]
    definitions = [definition(part) for part in _opened(parts) if part.type in _DEFINITIONS]
    declared = tuple(part for part in parts if part.type in _DECLARATIONS)
    constants = set().union(*(names_in(part) for part in declared if part.type == "constant_declaration"))
    name = words(next(part for part in parts if part.type == "identifier"))
    by_name = {each.name: each for each in definitions}
    return Module(name, text, tuple(extends), by_name, declared, frozenset(constants))


def _opened(parts: list[Node]) -> Iterator[Node]:
    for part in parts:
        yield from part.children if part.type == "local_definition" else (part,)


def _is_name(node: Node) -> bool:
    return node.type in ("identifier", "identifier_ref")


def definition(node: Node) -> Definition:
    """The definition whose node is `node`."""
    name = next(words(child) for child in node.children if _is_name(child))
    body = [child for child in node.named_children if child.type not in _COMMENTS][-1]
    return Definition(name, node, body)


def load(folder: Path) -> dict[str, Module]:
    """All modules of a folder, by name."""
    return {path.stem: parse(path.read_text(encoding="utf-8"), path.name) for path in sorted(folder.glob("*.tla"))}


def closure(modules: Mapping[str, Module], root: str) -> dict[str, Module]:
    """The modules that `root` extends, itself included, as far as they are among `modules`."""
    found: dict[str, Module] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name in modules and name not in found:
            found[name] = modules[name]
            todo += modules[name].extends
    return found


def walk(node: Node) -> Iterator[Node]:
    """`node` and all below it, comments left out."""
    if node.type in _COMMENTS:
        return
    yield node
    for child in node.children:
        yield from walk(child)


def has_comment(node: Node) -> bool:
    """Whether there is a comment in `node`."""
    return node.type in _COMMENTS or any(has_comment(child) for child in node.children)


def words(node: Node) -> str:
    """The text of `node` on one line."""
    return " ".join((node.text or b"").decode().split())


def kids(node: Node) -> list[Node]:
    """The children of `node`, comments left out."""
    return [child for child in node.children if child.type not in _COMMENTS]


def names_in(node: Node) -> set[str]:
    """All names that occur below `node`."""
    return {words(each) for each in walk(node) if _is_name(each)}


def content(node: Node) -> str:
    """What `node` says, whatever its comments, its line breaks and its place: equal for equal trees."""
    if node.type in _COMMENTS:
        return ""
    if not node.named_children:
        return words(node)
    return f"({node.type} {' '.join(filter(None, map(content, node.children)))})"


def short_hash(text: str, length: int = 8) -> str:
    """The first digits of a hash of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
