"""What is kept of mutants, when it holds, what must be explained; and the command from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palimpsest import cli
from palimpsest_model_check.errors import ManifestError
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import load_manifest
from palimpsest_model_check.mutants.explained import load_explained
from palimpsest_model_check.mutants.fingerprint import Fingerprints
from palimpsest_model_check.mutants.generator import generate
from palimpsest_model_check.mutants.runner import LIMIT, Case
from palimpsest_model_check.mutants.session import Session
from palimpsest_model_check.mutants.trial import Trials
from palimpsest_model_check.mutants.verdicts import (
    Keys,
    Record,
    Verdicts,
    case_for,
    load_verdicts,
    record,
    sample,
)
from tests.model_check.pretended import (
    MANIFEST,
    SPEC,
    TINY,
    Pretended,
    guards,
    models,
    run_pretended,
    steps_module,
)


def test_a_verdict_holds_for_its_content_only(tmp_path: Path) -> None:
    checked = models("ab")
    mutant = guards()[0]
    keys = Keys(Fingerprints(steps_module()), checked)
    killed = record(Case(mutant, checked, killed_by="InRange", model="a"), keys)
    survived = record(Case(mutant, checked, said={"a": "ok", "b": "ok"}), keys)
    verdicts = Verdicts({"killed": killed, "survived": survived}, {"InRange": {"mutant": "killed", "key": "k"}})
    verdicts.save(tmp_path / "verdicts.json")
    assert load_verdicts(tmp_path / "verdicts.json") == verdicts
    assert keys.holds(mutant, killed)
    assert keys.holds(mutant, survived)
    late = record(Case(mutant, checked, said={"a": "ok", "b": LIMIT}), keys)
    assert not keys.holds(mutant, late)
    assert keys.still(mutant, late) == {"a": "ok"}
    more = Keys(Fingerprints(steps_module()), models("abc"))
    assert more.holds(mutant, killed)
    assert not more.holds(mutant, survived)
    assert more.still(mutant, survived) == {"a": "ok", "b": "ok"}
    assert not more.holds(mutant, Record("InRange", "z", {}, 0.0, {"z": killed.keys["a"]}))
    assert not Keys(Fingerprints(steps_module()), models("a")).holds(mutant, None)
    other = steps_module(SPEC.replace("n' = 0", "n' = 1"))
    changed = next(each for each in generate(other, checked) if each.name == mutant.name)
    assert not Keys(Fingerprints(other), checked).holds(changed, killed)


def test_verdicts_that_cannot_be_read_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "verdicts.json").write_text('{"mutants": {"a": {"by": 1}}}')
    with pytest.raises(ManifestError, match="delete it"):
        load_verdicts(tmp_path / "verdicts.json")


def test_a_sample_is_the_same_for_a_seed_and_never_empty() -> None:
    mutants = guards()
    assert [each.name for each in sample(mutants, 0.4, 1)] == [each.name for each in sample(mutants, 0.4, 1)]
    assert len(sample(mutants, 0.01, 1)) == 1
    assert sample(mutants, 0.0, 1) == []
    assert len(sample(mutants, 1.0, 1)) == len(mutants)


def test_a_reason_needs_words_and_a_mutant_has_one(tmp_path: Path) -> None:
    path = tmp_path / "survivors.toml"
    path.write_text('[[survivor]]\nwhy = ""\nmutants = ["a"]\n')
    with pytest.raises(ManifestError, match="a has no reason"):
        load_explained(path)
    path.write_text('[[survivor]]\nwhy = "x"\nmutants = ["a", "a"]\n')
    with pytest.raises(ManifestError, match="a has two reasons"):
        load_explained(path)


def test_an_evaluation_error_does_not_kill(tmp_path: Path) -> None:
    write(tmp_path)
    manifest = load_manifest(tmp_path / "manifest.toml", tmp_path)
    broken = TINY.replace("n' = (n + 1)", "n' = (n + TRUE)")
    verdict = Trials(manifest, find_toolchain()).run(manifest.models["two"], {"Steps": broken})
    assert (verdict.killed_by, verdict.said) == (None, "evaluation error")
    case = Case(guards()[0], [manifest.models["two"]], said={"two": verdict.said})
    assert (case.killed_by, case.undecided) == (None, ["two"])


def test_a_violated_step_formula_has_its_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        TINY.replace("====\n", "Calm == [][n' <= n + 1 /\\ seen' >= seen]_vars\nOther == [][n' >= 0]_vars\n====\n"),
    )
    text = (
        (tmp_path / "manifest.toml")
        .read_text()
        .replace("[model.constants]", 'properties = ["Other", "Calm"]\n[model.constants]', 1)
    )
    (tmp_path / "manifest.toml").write_text(text)
    manifest = load_manifest(tmp_path / "manifest.toml", tmp_path)
    jumping = (tmp_path / "Steps.tla").read_text().replace("n' = (n + 1)", "n' = (n + 2)")
    assert Trials(manifest, find_toolchain()).run(manifest.models["two"], {"Steps": jumping}).killed_by == "Calm"


def write(folder: Path, spec: str = TINY) -> None:
    (folder / "Steps.tla").write_text(spec)
    (folder / "manifest.toml").write_text(MANIFEST)


def palimpsest(folder: Path, *arguments: str) -> int:
    where = ["--manifest", str(folder / "manifest.toml"), "--spec", str(folder), "--data", str(folder)]
    return cli.main(["mutants", *arguments, *where])


def explain(folder: Path, *mutants: str) -> None:
    quoted = ", ".join(f'"{name}"' for name in mutants)
    reasons = f'[[survivor]]\nwhy = "Always true."\nmutants = [{quoted}]\n'
    (folder / "survivors.toml").write_text(f'{reasons}[[property]]\nname = "Even"\nwhy = "Says the type."\n')


def survivors(folder: Path) -> list[str]:
    found = json.loads((folder / "verdicts.json").read_text())["mutants"]
    return [name for name, each in found.items() if each["killed_by"] is None]


@pytest.mark.timeout(400)
def test_survivors_need_a_reason_and_only_what_changed_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert palimpsest(tmp_path) == 1
    shown = capsys.readouterr().out
    assert "survives: Up (Steps): without the guard  seen >= 0" in shown
    assert "Even is not known to kill a mutant that no other property kills" in shown
    names = survivors(tmp_path)

    explain(tmp_path, *names)
    assert palimpsest(tmp_path) == 0
    assert "3 mutants, 0 run, 3 verdicts kept: all as it must be" in capsys.readouterr().out

    write(tmp_path, TINY.replace("InRange == n <= Max", "InRange == n <= Max + 0 \\* the same"))
    assert palimpsest(tmp_path, "--sample", "0.1", "--seed", "3") == 0
    assert "3 mutants, 3 run, no verdict kept" in capsys.readouterr().out
    assert palimpsest(tmp_path, "--sample", "0.1", "--seed", "3") == 0
    assert "3 mutants, 1 run, 2 verdicts kept" in capsys.readouterr().out

    explain(tmp_path, *names, "Steps.Up.guard.gone")
    assert palimpsest(tmp_path) == 1
    assert "Steps.Up.guard.gone has a reason to survive, and is no mutant" in capsys.readouterr().out


def test_one_is_run_by_its_name_and_a_killed_one_with_a_reason_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    name = next(each.name for each in guards() if "n < Max" in each.says)
    assert palimpsest(tmp_path, name) == 0
    assert "killed" in capsys.readouterr().out
    assert palimpsest(tmp_path, "nothing.like.it") == 2
    assert "no mutant with nothing.like.it in its name" in capsys.readouterr().err
    assert palimpsest(tmp_path, "--list") == 0
    assert "not run" in capsys.readouterr().out


def test_a_kept_verdict_that_comes_out_differently_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    name = next(each.name for each in guards() if "n < Max" in each.says)
    palimpsest(tmp_path, name)
    path = tmp_path / "verdicts.json"
    path.write_text(path.read_text().replace('"killed_by": "InRange"', '"killed_by": "Even"'))
    capsys.readouterr()
    assert palimpsest(tmp_path, name) == 1
    assert f"{name}: InRange, and Even was kept" in capsys.readouterr().out


def test_a_run_that_was_not_brought_to_its_end_is_gone_on_with(tmp_path: Path) -> None:
    mutant = guards()[0]
    keys = Keys(Fingerprints(steps_module()), models("ab"))
    half = record(Case(mutant, models("ab"), said={"a": "ok"}), keys)
    Verdicts({mutant.name: half}).save(tmp_path / "verdicts.json")
    kept = load_verdicts(tmp_path / "verdicts.json").mutants[mutant.name]
    assert not keys.holds(mutant, kept)
    case = case_for(mutant, models("ab"), kept, said=keys.still(mutant, kept))
    trials = Pretended({("a", "n < Max"): "Even"}, {"n < Max"})
    run_pretended(trials, [case])
    assert case.said == {"a": "ok", "b": "ok"}


def test_an_interrupt_keeps_a_verdict_that_held_and_what_the_models_said_so_far_of_others(tmp_path: Path) -> None:
    class Interrupted:
        def run(self, cases: list[Case]) -> None:
            for case in cases:
                case.said["a"] = "ok"
            raise KeyboardInterrupt

    write(tmp_path)
    session = Session(load_manifest(tmp_path / "manifest.toml", tmp_path), tmp_path)
    session.models = models("ab")
    session.keys = Keys(Fingerprints(steps_module()), session.models)
    known, other, *_ = guards()
    whole = record(Case(known, session.models, said={"a": "ok", "b": "ok"}), session.keys)
    session.verdicts.mutants[known.name] = whole
    with pytest.raises(KeyboardInterrupt):
        session._run([known, other], Interrupted())  # type: ignore[arg-type]
    assert session.verdicts.mutants[known.name] == whole
    assert session.verdicts.mutants[other.name].said == {"a": "ok"}
    assert not session.keys.holds(other, session.verdicts.mutants[other.name])
