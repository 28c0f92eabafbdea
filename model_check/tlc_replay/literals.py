"""Traces as TLA+ literals, for a TLC that cannot load the class that reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def literal(value: Any) -> str:
    """A JSON value as TLA+ writes it: an object as a record, an array as a sequence."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case dict():
            return "[" + ", ".join(f"{name} |-> {literal(item)}" for name, item in value.items()) + "]"
        case list() | tuple():
            return "<<" + ", ".join(map(literal, value)) + ">>"
    raise TypeError(f"no TLA+ value for {value!r}")


def set_of(items: Iterable[object]) -> str:
    """A set of what is written already."""
    return "{" + ", ".join(map(str, items)) + "}"
