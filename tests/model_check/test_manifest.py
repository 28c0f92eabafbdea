"""The manifest: what it takes over, what it refuses, and the folder that TLC is given for a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest_model_check.errors import ManifestError
from palimpsest_model_check.manifest import Manifest, load_manifest
from palimpsest_model_check.tlc import Run, run_tlc
from palimpsest_model_check.workspace import configuration, prepare

SPECS = Path(__file__).parent / "specs"

BASE = """
[[model]]
name = "counter"
purpose = "Two processes."
module = "Counter"
states = 15
invariants = ["InRange", "Small"]
properties = ["Full"]

[model.constants]
Max = 3
Procs = ["a", "b"]
"""

MUTANT = """
[[model]]
name = "mutant"
kind = "mutant"
base = "counter"
purpose = "The counter goes past its end."
kills = "InRange"
invariants = ["Small2", "InRange"]
properties = []
definitions = { Small2 = "n < 20" }

[[model.mutates]]
old = '''n' = n + 1'''
new = '''n' = n + 2'''
"""


def load(folder: Path, text: str) -> Manifest:
    path = folder / "manifest.toml"
    path.write_text(text, encoding="utf-8")
    return load_manifest(path, SPECS)


def room(folder: Path) -> Path:
    made = folder / "room"
    made.mkdir()
    return made


def test_a_model_takes_over_what_its_base_says_and_not_its_verdict(tmp_path: Path) -> None:
    model = load(tmp_path, BASE + MUTANT).models["mutant"]
    assert (model.module, model.expect, model.states) == ("Counter", "InRange", None)
    assert model.constants == {"Max": 3, "Procs": ("a", "b")}
    assert model.invariants == ("Small2", "InRange")


def test_the_configuration_is_generated_with_the_expected_violation_first(tmp_path: Path) -> None:
    model = load(tmp_path, BASE + MUTANT).models["mutant"]
    assert configuration(model).splitlines() == [
        "CONSTANTS",
        "  Max = 3",
        "  Procs = {a, b}",
        "SPECIFICATION Spec",
        "INVARIANT InRange",
        "INVARIANT Small2",
    ]


def test_a_mutant_is_checked_and_the_specification_stays_as_it_is(tmp_path: Path) -> None:
    before = (SPECS / "Counter.tla").read_text(encoding="utf-8")
    manifest = load(tmp_path, BASE + MUTANT)
    module, config = prepare(manifest.models["mutant"], manifest, room(tmp_path))
    assert run_tlc(Run(module, config, deadlock=False)).verdict == "InRange"
    assert (SPECS / "Counter.tla").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(("old", "times"), [("n' = n + 7", 0), ("seen' =", 2)])
def test_a_patch_that_does_not_fit_exactly_once_is_an_error(tmp_path: Path, old: str, times: int) -> None:
    manifest = load(tmp_path, BASE + MUTANT.replace("n' = n + 1", old))
    with pytest.raises(ManifestError) as raised:
        prepare(manifest.models["mutant"], manifest, room(tmp_path))
    for part in ("mutant", f"{times} times", "Counter.tla", old):
        assert part in str(raised.value)


def test_a_patch_that_changes_nothing_is_an_error(tmp_path: Path) -> None:
    manifest = load(tmp_path, BASE + MUTANT.replace("n + 2", "n + 1"))
    with pytest.raises(ManifestError, match="by itself"):
        prepare(manifest.models["mutant"], manifest, room(tmp_path))


def test_a_module_that_is_missing_is_an_error(tmp_path: Path) -> None:
    manifest = load(tmp_path, BASE.replace('"Counter"', '"NotThere"'))
    with pytest.raises(ManifestError, match="NotThere"):
        prepare(manifest.models["counter"], manifest, room(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('module = "Counter"', "", "module"),
        ("states = 15", "distinct_states = 15", "distinct_states"),
        ("states = 15", "states = '15'", "states"),
        ("states = 15", 'kind = "proof"', "proof"),
        ("states = 15", 'set = "slow"', "slow"),
        ("states = 15", 'expect = "NotChecked"', "NotChecked"),
        ("states = 15", 'kills = "Small"', "only a mutant"),
        ("states = 15", 'kind = "reach"', "must fail"),
        ("states = 15", 'symmetry = "Perms"', "symmetry"),
        ("states = 15", 'base = "nobody"', "nobody"),
        ("states = 15", 'base = "counter"', "circle"),
        ('["InRange", "Small"]\nproperties = ["Full"]', "[]", "checks nothing"),
    ],
)
def test_an_entry_that_does_not_hold_together_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in BASE
    with pytest.raises(ManifestError, match=says):
        load(tmp_path, BASE.replace(old, new))


@pytest.mark.parametrize("line", ['kills = "InRange"', 'base = "counter"'])
def test_a_mutant_without_what_it_needs_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ManifestError):
        load(tmp_path, BASE + MUTANT.replace(line, ""))


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="more than one model counter"):
        load(tmp_path, BASE + BASE)


def test_models_are_chosen_by_name_or_set(tmp_path: Path) -> None:
    full = MUTANT.replace('kind = "mutant"', 'kind = "mutant"\nset = "full"')
    manifest = load(tmp_path, BASE + full)
    assert [model.name for model in manifest.select(which="quick")] == ["counter"]
    assert [model.name for model in manifest.select(which="full")] == ["counter", "mutant"]
    assert [model.name for model in manifest.select(["mutant"])] == ["mutant"]
    with pytest.raises(ManifestError, match="no model other"):
        manifest.select(["other"])
