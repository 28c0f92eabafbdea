"""`palimpsest diff`: a change of the protocol is told, a change of comments is none."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.cli import main
from palimpsest_model_check.diff.trees import PATHS
from palimpsest_model_check.manifest import load_manifest

ROOT = Path(__file__).parents[2]
MODEL = "takeover"


def git(folder: Path, *arguments: str) -> None:
    name = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{file.name} has no {old!r}"
    file.write_text(text.replace(old, new, 1))


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository whose first commit is the protocol as it is."""
    folder = tmp_path / "repository"
    for path in PATHS:
        source, to = ROOT / path, folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to)
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "base")
    return folder


@pytest.fixture
def diff(repository, tmp_path) -> Callable[[], dict[str, Any]]:
    """Commits what was changed, and gives the difference to the first commit."""

    def compare() -> dict[str, Any]:
        git(repository, "commit", "-qam", "head")
        out = tmp_path / "diff.json"
        options = ["--repository", str(repository), "--json", str(out), "--markdown", str(tmp_path / "diff.md")]
        assert main(["diff", "HEAD~1..HEAD", *options]) == 0
        return json.loads(out.read_text())

    return compare


def of_kind(difference: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {change["name"]: change for change in difference["changes"] if change["kind"] == kind}


def evidence(difference: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in difference["evidence"] if each["evidence"] == name)


def test_a_guard_that_is_dropped_is_told_with_what_must_run_again(repository, diff, capsys, tmp_path):
    edit(repository / "spec/SlotOwnership.tla", "/\\ CanLag \\/ Landed(eng.page)\n", "\n")
    difference = diff()
    change = of_kind(difference, "action")["SlotOwnership.Publish"]
    assert (change["how"], change["gone"], change["new"]) == ("changed", ["guard CanLag \\/ Landed(eng.page)"], [])
    models = evidence(difference, "model checking")
    assert MODEL in models["due"]
    assert models["counts"]["kept"] > 0, "the host mirror's models do not have this action"
    assert not any(name.startswith("mirror") for name in models["due"])
    assert evidence(difference, "mutants of the specification")["counts"]["must run again"] > 0
    assert evidence(difference, "schedules (explore)")["counts"] == {"kept": 1}
    assert evidence(difference, "replay of traces in TLC")["counts"] == {"must run again": 1}
    assert "SlotOwnership.Publish" in capsys.readouterr().out
    assert "- guard CanLag \\/ Landed(eng.page)" in (tmp_path / "diff.md").read_text()


def test_comments_and_layout_are_no_change(repository, diff, capsys):
    edit(repository / "spec/SlotOwnership.tla", "Publish ==\n", "\\* another comment\nPublish ==\n\n")
    difference = diff()
    assert difference["changes"] == []
    assert set(evidence(difference, "model checking")["counts"]) == {"kept"}
    assert "the protocol does not change" in capsys.readouterr().out


def test_a_property_an_operator_and_an_action_of_the_code_have_their_own_kinds(repository, diff):
    edit(repository / "spec/PrefixCache.tla", "DOMAIN steps \\cap consumed = {}", "steps = steps")
    edit(repository / "spec/PrefixCache.tla", "LastOf(seq) == seq[Len(seq)]", "LastOf(seq) == seq[1]")
    edit(repository / "impl/palimpsest/actions.py", 'Action("escalate", (ENGINE,)', 'Action("escalate", (BUILDER,)')
    difference = diff()
    assert list(of_kind(difference, "property")) == ["PrefixCache.ConsumeOnce"]
    assert list(of_kind(difference, "definition")) == ["PrefixCache.LastOf"]
    code = of_kind(difference, "action of the code")["escalate"]
    assert (code["gone"], code["new"]) == (["threads (ENGINE,)"], ["threads (BUILDER,)"])


def test_transitions_are_told_one_by_one(repository, diff):
    edit(repository / "impl/palimpsest/lifecycle.py", '("commit", ("IN_TRANSIT",)', '("commit", ("ABSENT",)')
    changes = of_kind(diff(), "transition")
    assert {name: change["how"] for name, change in changes.items()} == {
        "SlotRow.commit: IN_TRANSIT -> COMMITTED": "removed",
        "SlotRow.commit: ABSENT -> COMMITTED": "added",
    }


def test_a_model_whose_states_were_recorded_anew_has_run(repository, diff):
    manifest = repository / "model_check/models/manifest.toml"
    states = load_manifest(manifest, ROOT / "spec").models[MODEL].states
    assert states is not None
    edit(manifest, f"states = {states}\n", f"states = {states + 1}\n")
    edit(manifest, 'Requests = \'{"a", "b", "c"}\'', 'Requests = \'{"a", "b"}\'')
    difference = diff()
    assert f"states {states + 1}" in of_kind(difference, "model")[MODEL]["new"]
    models = evidence(difference, "model checking")
    assert MODEL not in models["due"]
    assert models["counts"]["recorded anew"] >= 1


def test_mutants_with_another_verdict_are_told(repository, diff):
    verdicts = repository / "model_check/mutants/verdicts.json"
    edit(verdicts, '"killed_by": "BudgetExact"', '"killed_by": null')
    (turned,) = diff()["mutants"]
    assert (turned["before"], turned["after"]) == ("BudgetExact", "survives")


@pytest.mark.parametrize("commits", ["no-such-commit..HEAD", "HEAD..no-such-commit", "--output=x"])
def test_commits_that_are_not_there_are_refused(repository, capsys, commits):
    with pytest.raises(SystemExit) if commits.startswith("-") else pytest.MonkeyPatch.context():
        assert main(["diff", "--repository", str(repository), commits]) == 2
        assert "palimpsest diff:" in capsys.readouterr().err


def test_a_repository_without_a_specification_is_refused_by_name(tmp_path, capsys):
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "file").write_text("text")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    assert main(["diff", "HEAD", "--repository", str(tmp_path)]) == 2
    assert "no spec/" in capsys.readouterr().err
