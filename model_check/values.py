"""TLA+ values in Python: read from what TLC prints, written back, and as JSON.

An integer, a boolean and a string are themselves; a sequence is a tuple, a set a frozenset, a record or any
other function a `Function`, a model value a `ModelValue`. What TLC leaves unevaluated is a `Text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias


@dataclass(frozen=True)
class ModelValue:
    """An unnamed thing, equal only to itself: a request, a slot."""

    name: str


@dataclass(frozen=True)
class Text:
    """A value that could not be read, as it was printed."""

    text: str


@dataclass(frozen=True)
class Function:
    """A function by its pairs; a record is one whose domain is strings. Equal whatever the pairs' order."""

    pairs: frozenset[tuple[Value, Value]]

    @classmethod
    def of(cls, mapping: dict[Any, Any]) -> Function:
        """The function that maps each key to its value."""
        return cls(frozenset(mapping.items()))

    def items(self) -> list[tuple[Value, Value]]:
        """The pairs, in the order of the keys."""
        return list(self._sorted)

    @cached_property
    def _sorted(self) -> list[tuple[Value, Value]]:
        return sorted(self.pairs, key=lambda pair: _order(pair[0]))

    def as_dict(self) -> dict[Value, Value]:
        """The pairs as a dictionary."""
        return dict(self.items())

    @property
    def is_record(self) -> bool:
        """Whether TLC prints it with field names."""
        return all(isinstance(key, str) and _FIELD.fullmatch(key) for key, _ in self.pairs)


Value: TypeAlias = "int | bool | str | tuple[Value, ...] | frozenset[Value] | ModelValue | Text | Function"

_FIELD = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(r'\s*(?P<token>"(?:\\.|[^"\\])*"|-?\d+|[A-Za-z_]\w*|<<|>>|\|->|:>|@@|\.\.|[{}\[\](),])', re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@lru_cache(maxsize=10_000)  # the states of a graph have most of their values in common
def parse_value(text: str) -> Value:
    """The value that `text` says; a `Text` where it says something else."""
    try:
        return _Parser(text).whole()
    except _UnreadableError:
        return Text(" ".join(text.split()))


class _UnreadableError(ValueError):
    pass


class _Parser:
    """Recursive descent over the tokens of one value."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), ""]
        self._at = 0

    def whole(self) -> Value:
        value = self._value()
        if self._peek():
            raise _UnreadableError(self._peek())
        return value

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if wanted and token not in wanted:
            raise _UnreadableError(token)
        self._at += 1
        return token

    def _value(self) -> Value:
        token = self._take()
        if reader := self._readers().get(token):
            return reader()
        if token[:1] == '"':
            return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1], flags=re.DOTALL)
        if token.lstrip("-").isdigit():
            return self._number(int(token))
        return _word(token)

    def _readers(self) -> dict[str, Callable[[], Value]]:
        return {"<<": self._sequence, "{": self._set, "[": self._record, "(": self._function}

    def _number(self, low: int) -> Value:
        if self._peek() != "..":
            return low
        self._take("..")
        return frozenset(range(low, int(self._take()) + 1))

    def _several(self, close: str, item: Callable[[], Any]) -> Iterator[Any]:
        while self._peek() != close:
            yield item()
            if self._peek() != close:
                self._take(",")
        self._take(close)

    def _sequence(self) -> Value:
        return tuple(self._several(">>", self._value))

    def _set(self) -> Value:
        return frozenset(self._several("}", self._value))

    def _record(self) -> Value:
        return Function(frozenset(self._several("]", self._field)))

    def _field(self) -> tuple[str, Value]:
        name = self._take()
        if not _FIELD.fullmatch(name):
            raise _UnreadableError(name)
        self._take("|->")
        return name, self._value()

    def _function(self) -> Value:
        pairs = [self._pair()]
        while self._take("@@", ")") == "@@":
            pairs.append(self._pair())
        return Function(frozenset(pairs))

    def _pair(self) -> tuple[Value, Value]:
        key = self._value()
        self._take(":>")
        return key, self._value()


def _tokens(text: str) -> Iterator[str]:
    at, text = 0, text.strip()
    while at < len(text):
        if (match := _TOKEN.match(text, at)) is None:
            raise _UnreadableError(text[at:])
        yield match["token"]
        at = match.end()


def _word(token: str) -> Value:
    if token in ("TRUE", "FALSE"):
        return token == "TRUE"
    if not _FIELD.fullmatch(token):
        raise _UnreadableError(token)
    return ModelValue(token)


def format_value(value: Value) -> str:
    """`value` on one line, as TLA+ text; sets and functions in a fixed order."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            return _quoted(value)
        case tuple():
            return f"<<{_joined(value)}>>"
        case frozenset():
            return "{" + _joined(sorted(value, key=_order)) + "}"
        case Function():
            return _format_function(value)
        case ModelValue():
            return value.name
        case Text():
            return value.text


def _joined(values: Any) -> str:
    return ", ".join(map(format_value, values))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


def _format_function(value: Function) -> str:
    if not value.pairs:
        return "<<>>"
    if value.is_record:
        return "[" + ", ".join(f"{key} |-> {format_value(each)}" for key, each in value.items()) + "]"
    return "(" + " @@ ".join(f"{format_value(key)} :> {format_value(each)}" for key, each in value.items()) + ")"


def _order(value: Value) -> tuple[str, int, str]:
    number = value if isinstance(value, int) else 0
    return type(value).__name__, number, format_value(value)


def to_json(value: Value) -> Any:
    """`value` for JSON: sequences are lists, other structures objects with one entry that says which."""
    match value:
        case tuple():
            return [to_json(each) for each in value]
        case frozenset():
            return {"set": [to_json(each) for each in sorted(value, key=_order)]}
        case Function() if value.is_record:
            return {"record": {str(key): to_json(each) for key, each in value.items()}}
        case Function():
            return {"function": [[to_json(key), to_json(each)] for key, each in value.items()]}
        case ModelValue():
            return {"model value": value.name}
        case Text():
            return {"text": value.text}
        case _:
            return value


def from_json(value: Any) -> Value:
    """The value of which `to_json` gave `value`. Raises `ValueError` for anything else."""
    match value:
        case bool() | int() | str():
            return value
        case list():
            return tuple(map(from_json, value))
        case {"set": list(members), **rest} if not rest:
            return frozenset(map(from_json, members))
        case {"record": dict(fields), **rest} if not rest:
            return Function.of({key: from_json(each) for key, each in fields.items()})
        case {"function": list(pairs), **rest} if not rest:
            return Function.of({from_json(key): from_json(each) for key, each in pairs})
        case {"model value": str(name), **rest} if not rest:
            return ModelValue(name)
        case {"text": str(text), **rest} if not rest:
            return Text(text)
    raise ValueError(f"not a value of a counterexample: {value!r:.60}")
