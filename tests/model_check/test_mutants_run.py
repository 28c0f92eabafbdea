"""What kills a mutant, what does not, what is run again, and the exit status; with TLC on a tiny specification."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest import cli
from palimpsest_model_check.errors import ManifestError
from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import Model, load_manifest
from palimpsest_model_check.mutants import alone
from palimpsest_model_check.mutants.explained import load_explained
from palimpsest_model_check.mutants.fingerprint import Fingerprints
from palimpsest_model_check.mutants.generator import Mutant, generate
from palimpsest_model_check.mutants.runner import PATIENCE_S, Case, Runner
from palimpsest_model_check.mutants.syntax import Module, parse
from palimpsest_model_check.mutants.trial import Trials, Verdict
from palimpsest_model_check.mutants.verdicts import (
    Keys,
    Record,
    Verdicts,
    begun,
    case_for,
    load_verdicts,
    record,
    sample,
)

SPEC = r"""---- MODULE Steps ----
EXTENDS Naturals
CONSTANT Max
VARIABLES n, seen
vars == <<n, seen>>
Init == n = 0 /\ seen = 0
Up == /\ n < Max /\ seen >= 0
      /\ n' = (n + 1) % 5
      /\ seen' = seen
Down == /\ n > 5
        /\ n' = 0
        /\ seen' = 1
Next == Up \/ Down
Spec == Init /\ [][Next]_vars
InRange == n <= Max
Even == seen \in {0, 1}
====
"""
#: what TLC is asked about: three mutants, of which n < Max is the one that matters
TINY = SPEC.replace("Up \\/ Down", "Up")
MANIFEST = """
[[model]]
name = "two"
purpose = "Counts to two."
module = "Steps"
states = 3
invariants = ["InRange", "Even"]
[model.constants]
Max = 2
"""


class Quiet:
    """A listener that notes what ended."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def at(self, what: str) -> None:
        assert what

    def ended(self, case: Case) -> None:
        self.names.append(case.mutant.name)


class Pretended:
    """Trials without TLC: `kills` has the property by which a model kills a mutant, `steps` how many it adds."""

    def __init__(self, kills: Mapping[tuple[str, str], str | None], adds: Mapping[str, int]) -> None:
        self.kills, self.adds = kills, adds
        #: models in which a mutant has states without end, and the limits that these runs got
        self.endless: frozenset[str] = frozenset()
        self.limits: list[tuple[str, float | None]] = []
        self.calls: Counter[str] = Counter()
        self.lock = threading.Lock()

    def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
        with self.lock:
            self.calls["run"] += 1
        if model.name in self.endless:
            self.limits.append((model.name, limit_s))
            return Verdict(None, "time limit", 0.0)
        found = [by for (name, dropped), by in self.kills.items() if name == model.name and dropped in _lost(changes)]
        return Verdict(found[0], found[0], 0.0) if found and found[0] else Verdict(None, "ok", 0.0)

    def steps(
        self, model: Model, changes: Mapping[str, str], coverage: bool = False, limit_s: float | None = None
    ) -> Verdict:
        with self.lock:
            self.calls["steps"] += 1
        added = sum(self.adds[dropped] for dropped in self.adds if dropped in _lost(changes))
        return Verdict(None, "ok", 0.0, 100 + added, {})


def _lost(changes: Mapping[str, str]) -> list[str]:
    text = changes.get("Steps", SPEC)
    return [part for part in ("n < Max", "seen >= 0", "n > 5") if part not in text]


def steps_module(text: str = SPEC) -> dict[str, Module]:
    return {"Steps": parse(text)}


def models(names: str = "abcdef") -> list[Model]:
    return [Model(name, "A model.", "Steps", invariants=("InRange",), constants={"Max": 2}) for name in names]


def guards() -> list[Mutant]:
    return [each for each in generate(steps_module(), models()) if each.kind == "guard"]


def run_pretended(trials: Pretended, cases: list[Case]) -> None:
    Runner(trials, steps_module(), 2, Quiet()).run(cases)  # type: ignore[arg-type]


def test_a_mutant_with_states_without_end_gets_the_whole_limit_only_if_no_other_model_kills_it() -> None:
    trials = Pretended({("f", "n < Max"): "InRange"}, dict.fromkeys(("n < Max", "seen >= 0"), 1))
    trials.endless = frozenset("b")
    killed, survives = [Case(mutant, models()) for mutant in guards()[:2]]
    run_pretended(trials, [killed, survives])
    short = PATIENCE_S  # the model itself takes no time here
    assert (killed.killed_by, killed.model) == ("InRange", "f")
    assert trials.limits == [("b", short), ("b", short), ("b", None)]
    assert survives.undecided == ["b"]


def test_what_adds_no_step_together_is_not_checked_one_by_one() -> None:
    trials = Pretended({("f", "n < Max"): "InRange"}, {"n < Max": 1})
    cases = [Case(mutant, models(), resistant=True) for mutant in guards()]
    run_pretended(trials, cases)
    found = {case.mutant.says.partition("guard  ")[2]: (case.killed_by, case.model) for case in cases}
    assert found == {"n < Max": ("InRange", "f"), "seen >= 0": (None, None), "n > 5": (None, None)}
    assert trials.calls["run"] == len("abcdef")  # the one that adds a step, in each model


def test_a_part_that_is_never_evaluated_is_not_checked_there() -> None:
    (mutant,) = [each for each in generate(steps_module(), models()) if "Up (Steps): n' = n" in each.says]
    assert mutant.place is not None

    class Covering(Pretended):
        def steps(
            self, model: Model, changes: Mapping[str, str], coverage: bool = False, limit_s: float | None = None
        ) -> Verdict:
            return Verdict(None, "ok", 0.0, 100, {mutant.place: int(model.name == "b")} if mutant.place else {})

    trials = Covering({}, {})
    case = Case(mutant, models("abc"))
    run_pretended(trials, [case])
    assert (case.said, case.undecided) == ({"a": "not reached", "b": "ok", "c": "not reached"}, [])
    assert trials.calls["run"] == 1


def test_premises_that_may_all_go_are_checked_together() -> None:
    demanding = SPEC.replace("InRange == n <= Max", "InRange == seen = 0 /\\ n >= 0 => n <= Max")
    premises = [each for each in generate(steps_module(demanding), models()) if each.kind == "premise"]
    trials = Pretended({}, {})
    cases = [Case(mutant, models(), resistant=True) for mutant in premises]
    Runner(trials, steps_module(demanding), 2, Quiet()).run(cases)  # type: ignore[arg-type]
    assert len(cases) == 2
    assert all(set(case.said.values()) == {"ok"} for case in cases)
    assert trials.calls["run"] == len("abcdef")


def test_a_premise_under_a_negation_or_on_the_left_of_another_is_checked_alone() -> None:
    nested = SPEC.replace(
        "InRange == n <= Max", "InRange == ((n = 1 => seen = 0) => n <= Max) /\\ ~(n = 7 => seen = 7)"
    )
    premises = [each for each in generate(steps_module(nested), models()) if each.kind == "premise"]
    assert {each.says.partition("premise  ")[2]: each.demands for each in premises} == {
        "n = 1 => seen = 0": True,
        "n = 1": False,
        "n = 7": False,
    }


def test_what_showed_nothing_before_is_not_put_together_with_others() -> None:
    mutant = guards()[0]
    assert case_for(mutant, models("a"), Record(None, None, {"a": "same steps"}, 1.0, "")).resistant
    assert not case_for(mutant, models("a"), Record(None, None, {"a": "evaluation error"}, 1.0, "")).resistant


def test_what_killed_a_mutant_before_is_tried_first() -> None:
    trials = Pretended({("e", "n < Max"): "InRange", ("a", "n < Max"): "Other"}, {})
    mutant = next(each for each in guards() if "n < Max" in each.says)
    case = case_for(mutant, models(), Record("InRange", "e", {}, 1.0, ""))
    run_pretended(trials, [case])
    assert (case.killed_by, case.model, trials.calls["run"]) == ("InRange", "e", 1)


def test_a_mutant_is_not_tried_on_a_model_that_checks_nothing_of_what_it_changes() -> None:
    trials = Pretended({("a", "n < Max"): "InRange"}, {})
    mutant = next(each for each in guards() if "n < Max" in each.says)
    case = case_for(mutant, models("ab"), None, untouched=["a"])
    run_pretended(trials, [case])
    assert (case.killed_by, case.said["a"]) == (None, "not reached")
    others = parse("---- MODULE Others ----\nEXTENDS Naturals\nOther == 1\n====\n")
    modules = {**steps_module(), "Others": others}
    keys = Keys(Fingerprints(modules), [*models("a"), Model("o", "Another.", "Others", invariants=("Other",))])
    assert list(keys.untouched(mutant)) == ["o"]


def test_a_property_is_alone_where_no_other_kills_its_mutant() -> None:
    checked = [Model("a", "A model.", "Steps", invariants=("InRange", "Even"), constants={"Max": 2})]
    kills = {("a", "n < Max"): "InRange", ("a", "n > 5"): "Even", ("a", "seen >= 0"): "Even"}

    class Both(Pretended):
        def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
            lost = _lost(changes)
            if "n > 5" in lost and "InRange" in model.invariants:
                return Verdict("InRange", "InRange", 0.0)  # kills it where Even is not there
            found = super().run(model, changes)
            return found if found.killed_by in model.invariants else Verdict(None, "ok", 0.0)

    mutants = {each.name: each for each in guards()}
    verdicts = Verdicts()
    keys = Keys(Fingerprints(steps_module()), checked)
    for name, mutant in mutants.items():
        by = next(by for (_, dropped), by in kills.items() if dropped in mutant.says)
        verdicts.mutants[name] = Record(by, "a", {}, 0.0, keys.of_kill(mutant, "a"))
    runner = Runner(Both(kills, {}), steps_module(), 2, Quiet())  # type: ignore[arg-type]
    names = alone.properties_of(checked)
    alone.find(names, mutants, checked, verdicts, keys, runner)
    dropped = {name: mutants[kept["mutant"]].says.partition("guard  ")[2] for name, kept in verdicts.alone.items()}
    assert dropped == {"InRange": "n < Max", "Even": "seen >= 0"}
    assert all(alone.holds(name, mutants, verdicts, keys) for name in names)


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
    assert not keys.holds(mutant, replace(survived, said={"a": "ok", "b": "time limit"}))
    more = Keys(Fingerprints(steps_module()), models("abc"))
    assert more.holds(mutant, killed)
    assert not more.holds(mutant, Record("InRange", "z", {}, 0.0, killed.key))
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
    assert "Even kills no mutant that no other property kills" in shown
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
    half = Case(mutant, models("ab"), said={"a": "ok"})
    Verdicts(begun={mutant.name: begun(half, keys)}).save(tmp_path / "verdicts.json")
    kept = load_verdicts(tmp_path / "verdicts.json").begun[mutant.name]
    assert kept.keys == {"a": keys.of_kill(mutant, "a")}
    case, trials = case_for(mutant, models("ab"), None, begun=kept.said), Pretended({("a", "n < Max"): "Even"}, {})
    trials.adds = {"n < Max": 1}
    run_pretended(trials, [case])
    assert case.said == {"a": "ok", "b": "ok"}


def test_an_interrupt_ends_the_threads_and_keeps_what_came_out() -> None:
    class Interrupted(Pretended):
        runs = type("Ended", (), {"end": lambda self: ended.set()})()

        def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
            if "n > 5" in _lost(changes):
                raise KeyboardInterrupt
            return Verdict("InRange", "InRange", 0.0)

    ended = threading.Event()
    cases = [Case(mutant, models("a")) for mutant in guards()]
    with pytest.raises(KeyboardInterrupt):
        run_pretended(Interrupted({}, {"n > 5": 1, "n < Max": 1, "seen >= 0": 1}), cases)
    assert ended.is_set()
    assert [case.is_open for case in cases if "n > 5" in case.mutant.says] == [True]
