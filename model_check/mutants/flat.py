"""The text of a syntax tree on one line, with parts of it replaced: no list in it depends on where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .syntax import has_comment, kids, walk, words

if TYPE_CHECKING:
    from tree_sitter import Node

#: what is done to the text between two places
Replacements = Mapping[tuple[int, int], Callable[[str], str]]
_LISTS = {"conj_list": r" /\ ", "disj_list": r" \/ "}


def flat(node: Node, replacements: Replacements) -> str:
    """The text of `node`, each part at one of the places of `replacements` made another one."""
    place = node.start_byte, node.end_byte
    if place in replacements:  # also the place of a node that is all there is in this one
        return replacements[place](flat(node, {each: replacements[each] for each in replacements if each != place}))
    if node.type in _LISTS:
        items = [f"({flat(kids(item)[-1], replacements)})" for item in kids(node)]
        return f"({_LISTS[node.type].join(items)})"
    if _is_plain(node, replacements):
        return _text(node)
    return " ".join(flat(child, replacements) for child in kids(node))


def _is_plain(node: Node, replacements: Replacements) -> bool:
    """Whether the text of `node` can be taken as it is."""
    return not has_comment(node) and not any(
        each.type in _LISTS or (each.start_byte, each.end_byte) in replacements for each in walk(node)
    )


def _text(node: Node) -> str:
    text = (node.text or b"").decode()
    return words(node) if "\n" in text else text  # the blanks in a string are part of it
