"""A counterexample: what changed at each step, who did it, and its words."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from palimpsest_model_check.counterexample import (
    Counterexample,
    changes_of,
    print_counterexample,
    snake_case,
)
from palimpsest_model_check.output import Kind, Progress, Result, Step
from palimpsest_model_check.places import WORDS
from palimpsest_model_check.values import parse_value
from palimpsest_model_check.words import in_words, load_words


def diff(old: str, new: str) -> list[str]:
    return [str(change) for change in changes_of("v", parse_value(old), parse_value(new))]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("1", "1", []),
        ("1", "2", ["v: 1 -> 2"]),
        ("TRUE", "1", ["v: TRUE -> 1"]),
        ("(a :> 1 @@ b :> 2)", "(a :> 1 @@ b :> 3)", ["v[b]: 2 -> 3"]),
        ("[st |-> 1, own |-> a]", "[st |-> 2, own |-> a]", ["v.st: 1 -> 2"]),
        ("(a :> [st |-> {}])", "(a :> [st |-> {1}])", ["v[a].st: {} -> {1}"]),
        ("(a :> 1)", "(a :> 1 @@ b :> 2)", ["v[b]: nothing -> 2"]),
        ("(a :> 1 @@ b :> 2)", "(a :> 1)", ["v[b]: 2 -> nothing"]),
        ("<<>>", "(a :> 1)", ["v: <<>> -> (a :> 1)"]),
        ("{1, 2}", "{2, 3}", ["v gains {3}, loses {1}"]),
        ("{1, 2}", "{1, 2, 3}", ["v gains {3}"]),
        ("<<1, 2>>", "<<1, 2, 3>>", ["v is appended <<3>>"]),
        ("<<1, 2, 3>>", "<<2, 3>>", ["v loses its first <<1>>"]),
        ("<<1, 2>>", "<<1, 3>>", ["v[2]: 2 -> 3"]),
        ("<<1, 2>>", "<<3, 4, 5>>", ["v: <<1, 2>> -> <<3, 4, 5>>"]),
    ],
)
def test_a_change_is_shown_where_it_is(old: str, new: str, lines: list[str]) -> None:
    assert diff(old, new) == lines


def result(*steps: tuple[str, dict[str, str]], back_to: int | None = None, name: str = "ReadIntegrity") -> Result:
    made = tuple(
        Step(number, action, "", "", {variable: parse_value(text) for variable, text in values.items()})
        for number, (action, values) in enumerate(steps, start=1)
    )
    return Result(Kind.INVARIANT, name, Progress(9, 9, 0), made, back_to, "", (), 0.1, 12)


def test_the_thread_is_the_registrys_the_manifests_or_the_one_whose_variables_changed() -> None:
    example = Counterexample.of(
        "m",
        result(
            ("Init", {"at": "[builder |-> 0, prefetch |-> 0, other |-> 0]"}),
            ("Publish", {"at": "[builder |-> 0, prefetch |-> 0, other |-> 1]"}),
            ("BeginFetch", {"at": "[builder |-> 0, prefetch |-> 1, other |-> 1]"}),
            ("EndFetch", {"at": "[builder |-> 0, prefetch |-> 1, other |-> 2]"}),
            ("Reuse", {"at": "[builder |-> 0, prefetch |-> 1, other |-> 3]"}),
        ),
        threads={"Reuse": "scheduler"},
    )
    assert [row.thread for row in example.rows] == ["", "engine", "prefetch", "prefetch/builder", "scheduler"]


def test_it_is_printed_with_its_steps_and_the_property_in_words() -> None:
    out = io.StringIO()
    example = Counterexample.of("m", result(("Init", {"n": "0"}), ("Publish", {"n": "[x |-> 1]"}), back_to=1))
    print_counterexample(example, Console(file=out, width=110))
    text = " ".join(out.getvalue().split())
    for part in ("m violates ReadIntegrity", "n = 0", "n: 0 -> [x |-> 1]", "from step 1", in_words("ReadIntegrity")):
        assert part in text


def test_it_is_saved_with_whole_states(tmp_path: Path) -> None:
    example = Counterexample.of("m", result(("Init", {"n": "0"}), ("Publish", {"n": "{a}"})))
    saved = json.loads(example.save(tmp_path / "below").read_text())
    assert saved["says"] == in_words("ReadIntegrity")
    assert saved["steps"][1] == {
        "step": 2,
        "action": "Publish",
        "thread": "engine",
        "changes": [{"place": "n", "old": "0", "new": "{a}"}],
        "state": {"n": {"set": [{"model value": "a"}]}},
    }


def test_a_property_without_words_of_its_own_is_said_by_its_models_purpose() -> None:
    assert in_words("NeverSeen", "A read is replanned.") == "A read is replanned."
    assert "NeverSeen" in in_words("NeverSeen")


def test_each_property_has_one_sentence() -> None:
    words = load_words(WORDS)
    assert "ReadIntegrity" in words
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in words.values())


@pytest.mark.parametrize(("name", "snake"), [("BeginStep", "begin_step"), ("Publish", "publish"), ("Wake2", "wake2")])
def test_an_actions_python_name(name: str, snake: str) -> None:
    assert snake_case(name) == snake
