"""TLC on tiny specifications: each verdict, the counts and the counterexample; and the set-up's errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from palimpsest_model_check import jvm
from palimpsest_model_check.errors import ToolMissingError
from palimpsest_model_check.output import Kind, Progress, Step
from palimpsest_model_check.tlc import Result, Run, run_tlc
from palimpsest_model_check.values import Function

SPECS = Path(__file__).parent / "specs"
COUNTER = "CONSTANTS\n Max = 3\n Procs = {a, b}\n"


def check(folder: Path, lines: str, module: str = "Counter", on_progress: object = None, **options: object) -> Result:
    config = folder / "model.cfg"
    config.write_text((COUNTER if module == "Counter" else "") + lines, encoding="utf-8")
    return run_tlc(Run(SPECS / f"{module}.tla", config, **options), on_progress=on_progress)  # type: ignore[arg-type]


def values_of(step: Step, name: str) -> object:
    return step.values[name]


def test_what_holds_is_ok_and_its_states_are_counted(tmp_path: Path) -> None:
    reports: list[Progress] = []
    result = check(tmp_path, "SPECIFICATION Spec\nINVARIANT InRange\nPROPERTY Full\n", on_progress=reports.append)
    assert (result.kind, result.verdict, result.status) == (Kind.OK, "ok", 0)
    assert (result.progress.distinct, result.progress.generated, result.progress.queue) == (15, 23, 0)
    assert result.steps == ()
    assert reports[-1] == result.progress


def test_a_violated_invariant_is_named_with_the_steps_to_it(tmp_path: Path) -> None:
    result = check(tmp_path, "SPECIFICATION Spec\nINVARIANT InRange\nINVARIANT Small\n")
    assert (result.kind, result.verdict) == (Kind.INVARIANT, "Small")
    assert [step.action for step in result.steps] == ["Init", "Raise", "Raise"]
    assert [values_of(step, "n") for step in result.steps] == [0, 1, 2]
    seen = values_of(result.steps[0], "seen")
    assert isinstance(seen, Function)
    assert [value for _, value in seen.items()] == [Function.of({"raised": False, "log": ()})] * 2


def test_an_invariant_that_the_initial_state_violates_has_that_state(tmp_path: Path) -> None:
    result = check(tmp_path, "SPECIFICATION Spec\nINVARIANT Positive\n")
    assert result.verdict == "Positive"
    assert [(step.action, values_of(step, "n")) for step in result.steps] == [("Init", 0)]


def test_a_violated_action_property_is_named_and_ends_with_its_action(tmp_path: Path) -> None:
    result = check(tmp_path, "SPECIFICATION Spec\nPROPERTY OnlyUp\n")
    assert (result.kind, result.verdict) == (Kind.ACTION_PROPERTY, "OnlyUp")
    assert [step.action for step in result.steps] == ["Init", "Raise", "Raise", "Raise", "Reset"]


def test_a_violated_liveness_property_says_where_the_behavior_repeats(tmp_path: Path) -> None:
    result = check(tmp_path, "SPECIFICATION Spec\nPROPERTY Beyond\n")
    assert result.kind is Kind.TEMPORAL_PROPERTY
    assert result.back_to == 1


def test_a_deadlock_is_a_violation_unless_it_is_allowed(tmp_path: Path) -> None:
    result = check(tmp_path, "SPECIFICATION Stuck\n")
    assert (result.kind, result.verdict) == (Kind.DEADLOCK, "Deadlock")
    assert values_of(result.steps[-1], "n") == 3
    assert check(tmp_path, "SPECIFICATION Stuck\n", deadlock=False).kind is Kind.OK


@pytest.mark.parametrize(
    ("module", "kind", "says"),
    [
        ("Unparsable", Kind.PARSE, "Was expecting"),
        ("Unevaluable", Kind.EVALUATION, "Head"),
        ("Assuming", Kind.ASSUMPTION, "is false"),
    ],
)
def test_what_is_no_violation_is_no_verdict_about_a_property(
    tmp_path: Path, module: str, kind: Kind, says: str
) -> None:
    result = check(tmp_path, "SPECIFICATION Spec\n", module)
    assert result.kind is kind
    assert says in result.explanation


def test_a_configuration_that_names_nothing_in_the_module_is_not_ok(tmp_path: Path) -> None:
    result = check(tmp_path, "SPECIFICATION Spec\nINVARIANT NoSuchThing\n")
    assert result.kind is Kind.PARSE
    assert "NoSuchThing" in result.explanation


def test_a_java_that_dies_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!{sys.executable}\nraise SystemExit('no such option')\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv(jvm.JAVA_VARIABLE, str(java))
    result = check(tmp_path, "SPECIFICATION Spec\n")
    assert result.kind is Kind.CRASH
    assert "no such option" in result.explanation


def test_nothing_said_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!{sys.executable}\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv(jvm.JAVA_VARIABLE, str(java))
    assert check(tmp_path, "SPECIFICATION Spec\n").kind is not Kind.OK


def test_a_run_leaves_nothing_beside_its_specification(tmp_path: Path) -> None:
    before = sorted(SPECS.iterdir())
    check(tmp_path, "SPECIFICATION Spec\nINVARIANT Small\n")
    assert sorted(SPECS.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.cfg"]


@pytest.mark.parametrize(("variable", "find"), [(jvm.JAVA_VARIABLE, jvm.find_java), (jvm.JAR_VARIABLE, jvm.find_jar)])
def test_an_override_that_is_not_there_is_named_with_its_remedy(tmp_path: Path, variable: str, find: object) -> None:
    missing = tmp_path / "nothing"
    with pytest.raises(ToolMissingError) as raised:
        find({variable: str(missing)})  # type: ignore[operator]
    for part in (variable, str(missing), "set it to"):
        assert part in str(raised.value)


def test_the_packages_bring_both_and_the_jar_is_the_pinned_one() -> None:
    tools = jvm.find_toolchain({})
    assert os.access(tools.java, os.X_OK)
    assert tools.jar.name == "tla2tools.jar"


def test_a_changed_jar_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "tla2tools.jar"
    jar.write_bytes(b"something else")
    monkeypatch.setattr(jvm, "_packaged_jar", lambda: jar)
    with pytest.raises(ToolMissingError) as raised:
        jvm.find_jar({})
    for part in (str(jar), jvm.JAR_SHA256, "pip install", jvm.JAR_VARIABLE):
        assert part in str(raised.value)


def test_too_little_memory_is_said_before_a_run() -> None:
    with pytest.raises(ToolMissingError, match="not enough memory"):
        jvm.runs_that_fit(jvm.SMALL, 2, available=lambda: 1 << 20)
    assert jvm.runs_that_fit(jvm.SMALL, 2, available=lambda: 64 << 30) == 2
