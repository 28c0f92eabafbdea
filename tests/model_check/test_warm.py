"""The file that lets TLC start warm: made once, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from palimpsest_model_check import warm
from palimpsest_model_check.jvm import JAVA_VARIABLE, Toolchain, find_jar, find_java, find_toolchain
from palimpsest_model_check.manifest import load_manifest
from palimpsest_model_check.output import Result
from palimpsest_model_check.tlc import Run, run_tlc
from palimpsest_model_check.workspace import prepare


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "palimpsest"


def made(monkeypatch: pytest.MonkeyPatch, says: bytes = b"classes") -> list[Path]:
    """The files that are made from now on, of no run."""
    asked: list[Path] = []

    def train(path: Path, *_: Path) -> None:
        asked.append(path)
        path.write_bytes(says)

    monkeypatch.setattr(warm, "_train", train)
    return asked


def checked(tools: Toolchain, tmp_path: Path) -> Result:
    """What comes out of a small model."""
    manifest = load_manifest()
    (model,) = manifest.select(["live-end-deferred"])
    (room := tmp_path / "model").mkdir()
    module, config = prepare(model, manifest, room)
    return run_tlc(Run(module, config, 1, model.heap, model.deadlock, 60.0), tools)


def test_the_file_is_made_of_a_run_and_the_next_run_starts_with_it(cache: Path, tmp_path: Path) -> None:
    tools = find_toolchain()
    assert tools.archive is not None
    assert tools.archive.parent == cache
    assert tools.archive.stat().st_size > 1 << 20
    assert [path.name for path in cache.iterdir()] == [tools.archive.name]
    again = find_toolchain()
    assert again.archive == tools.archive
    assert checked(again, tmp_path).progress.distinct == 89


def test_a_file_that_does_not_fit_is_no_matter(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, b"not what Java keeps")
    tools = find_toolchain()
    assert tools.archive is not None
    assert checked(tools, tmp_path).progress.distinct == 89


def test_it_is_made_once_and_for_each_java_and_jar(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = made(monkeypatch)
    java, jar = find_java(), find_jar()
    first = warm.archive(java, jar, "a")
    assert warm.archive(java, jar, "a") == first
    assert warm.archive(java, jar, "b") != first
    assert len(asked) == 2


def test_a_java_that_does_not_make_it_is_asked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = made(monkeypatch, b"")
    java, jar = find_java(), find_jar()
    assert [warm.archive(java, jar, "a") for _ in range(2)] == [None, None]
    assert len(asked) == 1


def test_who_finds_another_at_it_does_without_and_one_that_died_is_not_waited_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(monkeypatch)
    java, jar = find_java(), find_jar()
    path = warm.archive(java, jar, "a")
    assert path is not None
    path.unlink()
    lock = path.with_suffix(".lock")
    lock.touch()
    assert warm.archive(java, jar, "a") is None
    os.utime(lock, (0, 0))
    assert warm.archive(java, jar, "a") == path


def test_a_folder_that_cannot_be_written_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_toolchain().archive is None


def test_a_java_of_the_users_own_starts_as_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = made(monkeypatch)
    monkeypatch.setenv(JAVA_VARIABLE, str(find_java()))
    assert find_toolchain().archive is None
    assert asked == []


def test_a_user_without_a_home_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert find_toolchain().archive is None
