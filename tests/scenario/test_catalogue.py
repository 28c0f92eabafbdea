"""The catalogue of scenarios, the list in README.md and the tests that carry its numbers say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from palimpsest_model_check.explore.scenarios import SCENARIOS

HERE = Path(__file__).resolve().parent

#: what the catalogue has; it leaves out some numbers
LEFT_OUT = {7, 8, 12, 16, 22, 25, 31, 41, 46, 50, 60, 63, 67, 74}
CATALOGUE = {f"S{number:02}" for number in range(1, 79)} - {f"S{number:02}" for number in LEFT_OUT}


def lines() -> dict[str, str]:
    """What the list says of each scenario."""
    found = re.findall(r"^\| (S\d\d) [^|]+\| (.+) \|$", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(dict(found)), "a scenario has two lines"
    return dict(found)


def names_of_tests() -> set[str]:
    """The names of all tests."""
    texts = [path.read_text(encoding="utf-8") for path in HERE.parent.rglob("test_*.py")]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def named_in(line: str) -> list[str]:
    """The tests that a line names; `*` stands for anything."""
    return [name for name in re.findall(r"`(test_[\w*]+)`", line) if not name.startswith("test_scenario_")]


def test_the_list_has_a_line_for_each_scenario_of_the_catalogue():
    assert len(CATALOGUE) == 64
    assert lines().keys() == CATALOGUE


@pytest.mark.parametrize("number", sorted(CATALOGUE))
def test_a_scenario_has_a_test_of_its_number_or_a_reason(number):
    line, names = lines()[number], names_of_tests()
    mine = {name for name in names if name.startswith(f"test_{number}_")}
    if line.startswith(("does not apply: ", "elsewhere: ")):
        assert not mine, "there is a test, and the list says why there is none"
        assert len(line) > 40
        assert line.startswith("does not apply") or named_in(line)
    else:
        assert mine
        assert f"test_{number}_*" in named_in(line)


def test_every_test_that_the_list_names_is_there():
    names = names_of_tests()
    for line in lines().values():
        for named in named_in(line):
            pattern = re.compile(named.replace("*", ".*"))
            assert any(pattern.fullmatch(name) for name in names), named


def test_numbers_of_tests_and_of_explored_scenarios_are_the_catalogues():
    numbers = {found[1] for name in names_of_tests() if (found := re.match(r"test_(S\d\d)_", name))}
    assert numbers <= CATALOGUE
    explored = {scenario.number for scenario in SCENARIOS.values()}
    of_mirror = {number for number in explored if number.startswith("M")}  # which has no public catalogue
    assert explored - of_mirror <= CATALOGUE
    assert len(explored - of_mirror) >= 20
