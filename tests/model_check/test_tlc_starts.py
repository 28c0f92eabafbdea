"""TLC where its JVM does not start, and the names of a refinement's violation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from palimpsest_model_check import jvm
from palimpsest_model_check.errors import ToolMissingError
from palimpsest_model_check.output import Kind
from palimpsest_model_check.tlc import Result, Run, run_tlc

SPECS = Path(__file__).parent / "specs"


def check(folder: Path, lines: str) -> Result:
    config = folder / "model.cfg"
    config.write_text("CONSTANTS\n Max = 3\n Procs = {a, b}\nSPECIFICATION Spec\n" + lines, encoding="utf-8")
    return run_tlc(Run(SPECS / "Refining.tla", config))


def java(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = folder / "java"
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv(jvm.JAVA_VARIABLE, str(program))
    return program


def test_a_jvm_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "print('java.lang.OutOfMemoryError: Java heap space'); raise SystemExit(1)"
    java(tmp_path, f"#!{sys.executable}\n{said}\n", monkeypatch)
    with pytest.raises(ToolMissingError, match="memory"):
        check(tmp_path, "")


def test_a_java_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java(tmp_path, f"#!{tmp_path / 'no-interpreter'}\n", monkeypatch)
    with pytest.raises(ToolMissingError) as raised:
        check(tmp_path, "")
    assert str(program) in str(raised.value)


def test_a_refinement_that_holds_is_ok(tmp_path: Path) -> None:
    assert check(tmp_path, "PROPERTY Refines\n").kind is Kind.OK


def test_a_refinement_that_breaks_is_a_violation_of_an_action_property(tmp_path: Path) -> None:
    result = check(tmp_path, "PROPERTY RefinesRising\n")
    assert result.kind is Kind.ACTION_PROPERTY
    assert result.steps[-1].action == "Reset"
