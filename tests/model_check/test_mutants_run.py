"""Which models the mutants of a specification are tried on, in which order, and which together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from palimpsest_model_check.manifest import Model
from palimpsest_model_check.mutants import alone
from palimpsest_model_check.mutants.fingerprint import Fingerprints
from palimpsest_model_check.mutants.generator import generate
from palimpsest_model_check.mutants.runner import EAGER, PATIENCE_S, Case, Runner
from palimpsest_model_check.mutants.syntax import parse
from palimpsest_model_check.mutants.trial import Verdict
from palimpsest_model_check.mutants.verdicts import (
    Keys,
    Record,
    Verdicts,
    case_for,
)
from tests.model_check.pretended import (
    SPEC,
    Pretended,
    Quiet,
    guards,
    lost,
    models,
    run_pretended,
    steps_module,
)


def test_a_mutant_with_states_without_end_gets_the_whole_limit_only_if_no_other_model_kills_it() -> None:
    trials = Pretended({("f", "n < Max"): "InRange"}, {"n < Max", "seen >= 0"})
    trials.endless = frozenset("b")
    killed, survives = [Case(mutant, models()) for mutant in guards()[:2]]
    run_pretended(trials, [killed, survives])
    short = PATIENCE_S  # the model itself takes no time here
    assert (killed.killed_by, killed.model) == ("InRange", "f")
    assert trials.limits == [("b", short), ("b", short), ("b", None)]
    assert survives.undecided == ["b"]


def test_what_adds_no_step_to_a_model_is_not_checked_there() -> None:
    trials = Pretended({("f", "n < Max"): "InRange"}, {"n < Max"})
    cases = [Case(mutant, models()) for mutant in guards()]
    run_pretended(trials, cases)
    found = {case.mutant.says.partition("guard  ")[2]: (case.killed_by, case.model) for case in cases}
    assert found == {"n < Max": ("InRange", "f"), "seen >= 0": (None, None), "n > 5": (None, None)}
    assert trials.calls == {
        "matterless": len("abcdef"),
        "run": len("abcdef"),
    }  # the one that adds a step, in each model


def test_premises_that_may_all_go_are_checked_together() -> None:
    demanding = SPEC.replace("InRange == n <= Max", "InRange == seen = 0 /\\ n >= 0 => n <= Max")
    premises = [each for each in generate(steps_module(demanding), models()) if each.kind == "premise"]
    trials = Pretended({}, set())
    cases = [Case(mutant, models()) for mutant in premises]
    Runner(trials, steps_module(demanding), 2, Quiet()).run(cases)  # type: ignore[arg-type]
    assert len(cases) == 2
    assert all(set(case.said.values()) == {"ok"} for case in cases)
    assert trials.calls["run"] == EAGER * len(cases) + len("abcdef") - EAGER


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


def test_what_killed_a_mutant_before_is_tried_first() -> None:
    trials = Pretended({("e", "n < Max"): "InRange", ("a", "n < Max"): "Other"}, set())
    mutant = next(each for each in guards() if "n < Max" in each.says)
    case = case_for(mutant, models(), Record("InRange", "e", {}, 1.0, {}))
    run_pretended(trials, [case])
    assert (case.killed_by, case.model, trials.calls["run"]) == ("InRange", "e", 1)


def test_a_mutant_is_not_tried_on_a_model_that_checks_nothing_of_what_it_changes() -> None:
    trials = Pretended({("a", "n < Max"): "InRange"}, {"n < Max"})
    mutant = next(each for each in guards() if "n < Max" in each.says)
    case = case_for(mutant, models("ab"), None, untouched=["a"])
    run_pretended(trials, [case])
    assert (case.killed_by, case.said["a"]) == (None, "not reached")
    others = parse("---- MODULE Others ----\nEXTENDS Naturals\nOther == 1\n====\n")
    modules = {**steps_module(), "Others": others}
    keys = Keys(Fingerprints(modules), [*models("a"), Model("o", "Another.", "Others", invariants=("Other",))])
    assert keys.untouched(mutant) == {"o"}


def test_a_property_is_alone_where_no_other_kills_its_mutant() -> None:
    checked = [Model("a", "A model.", "Steps", invariants=("InRange", "Even"), constants={"Max": 2})]
    kills = {("a", "n < Max"): "InRange", ("a", "n > 5"): "Even", ("a", "seen >= 0"): "Even"}

    class Both(Pretended):
        def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
            gone = lost(changes)
            if "n > 5" in gone and "InRange" in model.invariants:
                return Verdict("InRange", "InRange", 0.0)  # kills it where Even is not there
            found = super().run(model, changes)
            return found if found.killed_by in model.invariants else Verdict(None, "ok", 0.0)

    mutants = {each.name: each for each in guards()}
    verdicts = Verdicts()
    keys = Keys(Fingerprints(steps_module()), checked)
    for name, mutant in mutants.items():
        by = next(by for (_, dropped), by in kills.items() if dropped in mutant.says)
        verdicts.mutants[name] = Record(by, "a", {}, 0.0, {"a": keys.of(mutant, "a")})
    runner = Runner(Both(kills, set()), steps_module(), 2, Quiet())  # type: ignore[arg-type]
    names = alone.properties_of(checked)
    alone.find(names, mutants, checked, verdicts, keys, runner)
    dropped = {name: mutants[kept["mutant"]].says.partition("guard  ")[2] for name, kept in verdicts.alone.items()}
    assert dropped == {"InRange": "n < Max", "Even": "seen >= 0"}
    assert all(alone.holds(name, mutants, verdicts, keys) for name in names)


def test_an_interrupt_ends_the_threads_and_keeps_what_came_out() -> None:
    class Interrupted(Pretended):
        def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
            if "n > 5" in lost(changes):
                raise KeyboardInterrupt
            return Verdict("InRange", "InRange", 0.0)

    cases = [Case(mutant, models("a")) for mutant in guards()]
    interrupted = Interrupted({}, {"n > 5", "n < Max", "seen >= 0"})
    with pytest.raises(KeyboardInterrupt):
        run_pretended(interrupted, cases)
    assert interrupted.runs.ended
    assert [case.is_open for case in cases if "n > 5" in case.mutant.says] == [True]
