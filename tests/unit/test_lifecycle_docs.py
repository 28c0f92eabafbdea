"""The diagrams of the life cycles in the docs are those that are declared."""

from __future__ import annotations

from pathlib import Path

from palimpsest import lifecycle_docs
from palimpsest.lifecycle import LIFECYCLES

DOCUMENT = Path(__file__).parents[2] / "docs" / "lifecycles.md"


def test_the_document_is_the_one_that_the_declarations_give():
    assert DOCUMENT.read_text(encoding="utf-8") == lifecycle_docs.document(), (
        "the life cycles have changed: python -m palimpsest.lifecycle_docs docs/lifecycles.md"
    )


def test_each_life_cycle_has_its_diagram_and_each_trigger_its_actions():
    text = lifecycle_docs.document()
    assert text.count("```mermaid\nstateDiagram-v2") == len(LIFECYCLES)
    for lifecycle in LIFECYCLES:
        for trigger, _, dest in lifecycle.transitions:
            assert any(line.startswith(f"| `{trigger}` |") and f"| {dest} |" in line for line in text.splitlines())


def test_the_command_writes_the_file_that_it_is_given(tmp_path, capsys):
    assert lifecycle_docs.main([str(tmp_path / "made.md")]) == 0
    assert (tmp_path / "made.md").read_text() == lifecycle_docs.document()
    assert lifecycle_docs.main([]) == 2
    assert "usage" in capsys.readouterr().err
