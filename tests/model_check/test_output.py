"""TLC's machine-readable output: what older and newer versions say, and what a broken one leaves out."""

from __future__ import annotations

import pytest

from palimpsest_model_check.output import Kind, Output, Progress


def message(code: int, severity: int, text: str) -> str:
    return f"@!@!@STARTMSG {code}:{severity} @!@!@\n{text}\n@!@!@ENDMSG {code} @!@!@\n"


STATS = message(2199, 0, "1,234,567 states generated, 89,012 distinct states found, 3 states left on queue.")
SUCCESS = message(2193, 0, "Model checking completed. No error has been found.")


def read(text: str, status: int) -> Output:
    output = Output()
    for line in text.splitlines(keepends=True):
        output.feed(line)
    output.finish(status)
    return output


def test_counts_are_read_with_their_separators() -> None:
    assert read(SUCCESS + STATS, 0).progress == Progress(1234567, 89012, 3)
    progress = "Progress(5) at 2026-01-02 03:04:05: 1,000 states generated (4,329 s/min), 400 distinct states found "
    assert read(message(2200, 0, progress + "(2,962 ds/min), 15 states left on queue."), 0).progress.queue == 15


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        (SUCCESS, 0, Kind.OK),
        (SUCCESS, 1, Kind.CRASH),
        ("", 0, Kind.CRASH),
        (STATS, 0, Kind.CRASH),
        ("Error: A JNI error has occurred\n", 1, Kind.CRASH),
        (SUCCESS + message(2110, 1, "Invariant A is violated."), 12, Kind.INVARIANT),
        ("", 11, Kind.DEADLOCK),
        ("", 75, Kind.EVALUATION),
        ("", 150, Kind.PARSE),
        ("", -9, Kind.CRASH),
    ],
)
def test_only_the_words_and_the_status_together_make_an_ok(text: str, status: int, kind: Kind) -> None:
    assert read(text, status).kind is kind


@pytest.mark.parametrize(
    ("says", "name"),
    [("Temporal properties were violated.", None), ("Temporal property Live was violated.", "Live")],
)
def test_a_temporal_property_is_named_where_tlc_names_it(says: str, name: str | None) -> None:
    output = read(message(2116, 1, says), 13)
    assert (output.kind, output.name) == (Kind.TEMPORAL_PROPERTY, name)


def test_an_action_with_its_arguments_is_read() -> None:
    state = "2: <Raise(p1, {1, 2}) line 12, col 3 to line 14, col 70 of module Counter>\n/\\ n = 1\n/\\ seen = {}"
    (step,) = read(message(2217, 4, state), 12).steps
    assert (step.action, step.arguments) == ("Raise", "p1, {1, 2}")
    assert step.where == "12, col 3 to line 14, col 70 of module Counter"
    assert step.values == {"n": 1, "seen": frozenset()}


@pytest.mark.parametrize(
    ("code", "says", "back_to"),
    [
        (2218, "4: Stuttering", 3),
        (2122, "2: Back to state: <Raise line 12, col 3 to line 14, col 70 of module Counter>", 2),
        (2122, "Back to state 2.", 2),
    ],
)
def test_where_a_behavior_goes_back_to(code: int, says: str, back_to: int) -> None:
    assert read(message(code, 4, says), 13).back_to == back_to


def test_a_message_without_an_end_ends_with_the_next() -> None:
    assert read("@!@!@STARTMSG 2110:1 @!@!@\nInvariant A is violated.\n" + STATS, 12).name == "A"


def test_what_is_printed_outside_of_messages_is_kept() -> None:
    assert list(read("Parsing file /x/A.tla\nACCEPT 3\n" + SUCCESS, 0).lines) == ["ACCEPT 3"]
