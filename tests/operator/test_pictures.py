"""The pictures of the docs show what is declared, and need no network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from palimpsest.lifecycle import LIFECYCLES

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        import pictures
    finally:
        sys.path.remove(str(DOCS))
    return pictures


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("lifecycle", LIFECYCLES, ids=lambda each: each.name)
def test_a_life_cycle_has_its_states_each_trigger_and_its_final_states_marked(pictures, lifecycle):
    svg = pictures.pictures()[f"{lifecycle.name}.svg"]
    found = texts(svg)
    assert set(lifecycle.states) <= set(found)
    triggers = {trigger for text in found if text not in lifecycle.states for trigger in text.split(" / ")}
    assert triggers == {trigger for trigger, _, _ in lifecycle.transitions}
    left = {source for _, sources, _ in lifecycle.transitions for source in sources}
    inner = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}rect") if each.get("class") == "arrow"]
    assert len(inner) == len(set(lifecycle.states) - left)


@pytest.mark.parametrize("lifecycle", LIFECYCLES, ids=lambda each: each.name)
def test_each_trigger_has_a_line_with_the_actions_that_pull_it(pictures, lifecycle):
    lines = pictures.lifecycles().splitlines()
    for trigger, _, dest in lifecycle.transitions:
        (line,) = (line for line in lines if line.startswith(f"| `{trigger}` |") and f"| {dest} |" in line)
        assert all(f"`{action}`" in line for action in lifecycle.actions.get(trigger, ()))


def test_nothing_of_a_picture_lies_outside_it_or_on_the_network(pictures):
    for name, svg in pictures.pictures().items():
        root = ElementTree.fromstring(svg)
        _, _, width, height = map(float, root.get("viewBox").split())
        for each in root.iter(f"{SVG}text"):
            x, long = float(each.get("x")), 6 * len(each.text)
            begin = {"start": x, "middle": x - long / 2, "end": x - long}[each.get("text-anchor")]
            assert 0 <= begin <= begin + long <= width, f"{name}: {each.text}"
            assert 0 <= float(each.get("y")) <= height, f"{name}: {each.text}"
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
