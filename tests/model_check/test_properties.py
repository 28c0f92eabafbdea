"""The page of properties is the one that the manifest and the specification say."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest_model_check.errors import CheckError
from palimpsest_model_check.manifest import load_manifest
from palimpsest_model_check.mutants.session import Session
from palimpsest_model_check.properties import page

PAGE = Path(__file__).resolve().parents[2] / "spec" / "PROPERTIES.md"


def test_the_page_is_written_from_what_is_checked_now():
    written = page(load_manifest())
    assert PAGE.read_text(encoding="utf-8") == written, (
        "run: python -m palimpsest_model_check.properties > spec/PROPERTIES.md"
    )


def test_no_page_is_written_while_it_is_not_known_what_only_a_property_sees(monkeypatch):
    monkeypatch.setattr(Session, "idle", ["TaskChain"])
    with pytest.raises(CheckError, match=r"TaskChain is not known .*`palimpsest mutants`"):
        page(load_manifest())


def test_each_property_of_a_model_is_on_the_page_with_what_it_would_look_like_broken():
    manifest, text = load_manifest(), PAGE.read_text(encoding="utf-8")
    models = [model for model in manifest.models.values() if model.kind == "model"]
    checked = {name for model in models for name in (*model.invariants, *model.properties)} - {"TypeOK"}
    assert {line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")} == checked | {
        "Deadlock"
    }
    assert text.count("\nOnly ") + text.count("\nOthers see all that it sees. ") == text.count("\n### ")


def test_a_mutant_without_the_property_that_kills_it_has_all_others_of_its_model():
    models = load_manifest().models
    derived, base = models["mutant-mates-kept-without"], models["mates"]
    assert (derived.expect, derived.set, derived.kind, derived.deadlock) == ("ok", "full", "without", True)
    assert set(derived.invariants) == set(base.invariants) - {"TenantIsolation"}
    assert (derived.properties, derived.mutates) == (base.properties, models["mutant-mates-kept"].mutates)
