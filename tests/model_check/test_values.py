"""Values as TLC prints them: read into Python, written back, and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest_model_check.output import parse_state
from palimpsest_model_check.values import Function, ModelValue, Text, format_value, parse_value, to_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-1", -1),
        ("TRUE", True),
        ("FALSE", False),
        ('"a b"', "a b"),
        (r'"say \"hi\" \\ bye"', r'say "hi" \ bye'),
        ('"<<1, 2>> |-> }"', "<<1, 2>> |-> }"),
        ("r1", ModelValue("r1")),
        ("<<>>", ()),
        ("<<1, <<2>>>>", (1, (2,))),
        ("{}", frozenset()),
        ("{{1}, {}}", frozenset({frozenset({1}), frozenset()})),
        ("1..3", frozenset({1, 2, 3})),
        ("[a |-> 1, b |-> <<TRUE>>]", Function.of({"a": 1, "b": (True,)})),
        ("(0 :> {r1} @@ 1 :> {})", Function.of({0: frozenset({ModelValue("r1")}), 1: frozenset()})),
        ("(<<1, r1>> :> [x |-> 0])", Function.of({(1, ModelValue("r1")): Function.of({"x": 0})})),
        ("[ a |-> 1,\n  b |-> <<\n    2 >> ]", Function.of({"a": 1, "b": (2,)})),
    ],
)
def test_a_value_is_read_and_written_back(text: str, value: Any) -> None:
    read = parse_value(text)
    assert read == value
    assert type(read) is type(value)
    assert parse_value(format_value(read)) == value
    json.dumps(to_json(read))


@pytest.mark.parametrize("text", ["{1, 2", "[a |-> ]", "1 2", "[x \\in Nat |-> x]", ""])
def test_what_cannot_be_read_is_kept_as_text(text: str) -> None:
    assert isinstance(parse_value(text), Text)


def test_a_function_is_equal_whatever_the_order_of_its_pairs() -> None:
    assert parse_value("(1 :> 2 @@ 3 :> 4)") == parse_value("(3 :> 4 @@ 1 :> 2)")


def test_a_state_is_read_by_variable_over_several_lines() -> None:
    text = '/\\ owner = [ a |-> "/\\\\ n = 1",\n  b |-> r1 ]\n/\\ n = 3\n'
    assert parse_state(text) == {"owner": Function.of({"a": "/\\ n = 1", "b": ModelValue("r1")}), "n": 3}
    assert parse_state("n = 3") == {"n": 3}


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name not in ("TRUE", "FALSE"))
SIMPLE = st.integers() | st.booleans() | st.text(max_size=8) | NAMES.map(ModelValue)


def structures(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    functions = st.dictionaries(inner, inner, min_size=1, max_size=3) | st.dictionaries(NAMES, inner, min_size=1)
    return st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3) | functions.map(Function.of)


@settings(max_examples=60, deadline=None)
@given(st.recursive(SIMPLE, structures, max_leaves=12))
def test_any_value_is_the_same_after_writing_and_reading(value: Any) -> None:
    text = format_value(value)
    assert parse_value(text) == value
    assert format_value(parse_value(text)) == text
    json.dumps(to_json(value))
