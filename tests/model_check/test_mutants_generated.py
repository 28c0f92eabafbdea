"""The mutants of small specifications, rule by rule, and what their names and keys depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest_model_check.errors import CheckError, ManifestError
from palimpsest_model_check.manifest import Model, Patch, load_manifest
from palimpsest_model_check.mutants.catalogue import apply_all, load_catalogue
from palimpsest_model_check.mutants.fingerprint import Fingerprints
from palimpsest_model_check.mutants.generator import Mutant, generate, joined
from palimpsest_model_check.mutants.operators import Operators
from palimpsest_model_check.mutants.rules import ActionMutants
from palimpsest_model_check.mutants.syntax import Module, closure, load, parse

BASE = r"""---- MODULE Base ----
EXTENDS Naturals
CONSTANTS Max, CanSkip
VARIABLES n, turn, log
vars == <<n, turn, log>>
Mine(p) == turn = p
Tired(p) == log.last = p /\ log.count > 1
Pass == turn' = 1 - turn
Stay(p) == /\ turn = p
           /\ turn' = turn /\ log' = log
====
"""
TURNS = r"""---- MODULE Turns ----
EXTENDS Base
Init == n = 0 /\ turn = 0 /\ log = [last |-> 0, count |-> 0]
Raise(p) ==
    /\ Mine(p)            \* whose turn it is
    /\ n < Max /\ ~Tired(p)
    /\ \/ p = 0
       \/ /\ p = 1 /\ n > 0
          /\ LET more == n + 1
             IN  more <= Max
    /\ n' = n + 1
    /\ Pass
    /\ log' = [log EXCEPT !.last = p, !.count = @ + 1]
Skip(p) == CanSkip /\ Stay(p) /\ n' = n - 1
Next == \E p \in 0..1 : Raise(p) \/ Skip(p)
Spec == Init /\ [][Next]_vars /\ WF_vars(Next)
InRange == n > 0 /\ turn = 1 => n <= Max
Used == \A p \in 0..1 : Odd(p) => n > 0
Odd(p) == p = 1 /\ Mine(p) => n % 2 = 1
====
"""
MODEL = Model(
    "turns", "Two take turns.", "Turns", invariants=("InRange", "Used"), constants={"Max": 2, "CanSkip": True}
)


def modules(turns: str = TURNS, base: str = BASE, **others: str) -> dict[str, Module]:
    texts = {"Turns": turns, "Base": base, **others}
    return {name: parse(text, name) for name, text in texts.items()}


def mutants_of(kind: str, turns: str = TURNS, base: str = BASE) -> dict[str, Mutant]:
    found = [each for each in generate(modules(turns, base), [MODEL]) if each.kind == kind]
    return {each.says.partition("): ")[2]: each for each in found}


def changed(mutant: Mutant) -> list[str]:
    """The lines that the mutant changes, as they are in it."""
    before = {"Turns": TURNS, "Base": BASE}[mutant.module].splitlines()
    after = mutant.changes[mutant.module].splitlines()
    assert len(before) == len(after)
    return [new.rstrip() for old, new in zip(before, after, strict=True) if old != new]


def test_each_conjunct_of_an_action_that_changes_nothing_is_dropped() -> None:
    dropped = {says.removeprefix("without the guard  ") for says in mutants_of("guard")}
    alternatives = r"\/ p = 0 \/ /\ p = 1 /\ n > 0 /\ LET more == n + 1 IN more <= Max"
    inside = {"p = 1", "n > 0", "LET more == n + 1 IN more <= Max"}
    assert dropped == {"Mine(p)", "n < Max", "~Tired(p)", alternatives, *inside, "turn = p"}


def test_a_dropped_conjunct_leaves_all_others_where_they_were() -> None:
    assert changed(mutants_of("guard")["without the guard  p = 1"]) == [r"       \/ /\ TRUE  /\ n > 0"]


def test_nothing_is_dropped_under_a_negation_and_no_switch_of_the_environment() -> None:
    says = " ".join(mutants_of("guard"))
    assert "log.last" not in says
    assert "CanSkip" not in says


def test_each_update_leaves_its_variable_as_it_was() -> None:
    updates = mutants_of("update")
    assert set(updates) == {
        "n' = n  for  n' = n + 1",
        "n' = n  for  n' = n - 1",
        "turn' = turn  for  Pass",
        "log' = log  for  log' = [log EXCEPT !.last = p, !.count = @ + 1]",
    }
    assert changed(updates["turn' = turn  for  Pass"]) == [r"    /\ turn' = turn"]


def test_each_component_of_an_update_of_several_is_dropped() -> None:
    components = mutants_of("component")
    assert changed(components["does not set  !.last = p"]) == [
        r"    /\ log' = [log EXCEPT             !.count = @ + 1]"
    ]
    assert changed(components["does not set  !.count = @ + 1"])[0].endswith("!.last = p                 ]")
    assert len(components) == 2


def test_each_premise_of_a_property_is_dropped_also_of_what_it_is_made_of() -> None:
    premises = mutants_of("premise")
    assert {says.removeprefix("without the premise  ") for says in premises} == {
        *("n > 0", "turn = 1", "Odd(p)", "p = 1", "Mine(p)")
    }
    assert not any(each.is_of_protocol for each in premises.values())


def test_each_fairness_is_dropped() -> None:
    (mutant,) = mutants_of("fairness").values()
    assert changed(mutant) == [r"Spec == Init /\ [][Next]_vars /\ TRUE"]


def test_a_description_names_operator_and_module() -> None:
    assert mutants_of("guard")["without the guard  turn = p"].says.startswith("Stay (Base): ")


def test_names_depend_on_what_is_dropped_and_not_on_where_it_stands() -> None:
    names = {each.name for each in generate(modules(), [MODEL])}
    moved = TURNS.replace("Raise(p) ==", "\\* a remark\n\nOther == 1\nRaise(p) ==").replace("n < Max", "n  <  Max")
    assert {each.name for each in generate(modules(moved), [MODEL])} == names
    other = {each.name for each in generate(modules(TURNS.replace("n < Max", "n < Max - 1")), [MODEL])}
    assert (len(names - other), len(other - names)) == (1, 1)


def test_the_same_words_twice_have_two_names() -> None:
    twice = TURNS.replace("/\\ n < Max", "/\\ n < Max /\\ n < Max")
    names = [each.name for each in generate(modules(twice), [MODEL])]
    assert len(names) == len(set(names))


def test_only_what_adds_steps_wherever_it_is_used_is_said_to() -> None:
    negated = TURNS.replace("~Tired(p)", "~Tired(p) /\\ (Tired(p) \\/ TRUE)")
    operators = Operators(closure(modules(negated), "Turns"))
    actions = ActionMutants(operators)
    actions.of("Next")
    monotone = actions.monotone("Next")
    assert "Tired" not in monotone
    assert {"Next", "Raise", "Mine", "Stay"} <= monotone
    adding = mutants_of("guard", negated)
    assert not adding["without the guard  log.last = p"].adds
    assert adding["without the guard  n < Max"].adds


def test_mutants_that_add_steps_are_joined_also_where_one_lies_in_another() -> None:
    guards = [each for each in mutants_of("guard").values() if each.adds]
    text = joined(guards, modules())["Turns"]
    assert r"/\ TRUE    /\ TRUE" in text
    assert "p = 0" not in text
    parse(text)


def test_a_module_that_cannot_be_read_is_named_with_the_line() -> None:
    with pytest.raises(CheckError, match=r"Turns.*line 4"):
        parse(TURNS.replace("Raise(p) ==\n", "Raise(p) == ==\n"), "Turns")


INSTANCE = "Abs == INSTANCE Abstract WITH total <- n\nSeen == Abs!Spec\n===="
ABSTRACT = "---- MODULE Abstract ----\nVARIABLE total\nSpec == total = 0\n====\n"


def key(model: Model = MODEL, changes: Mapping[str, str] | None = None, **texts: str) -> str:
    return Fingerprints(modules(**texts)).of(model, changes)


@pytest.mark.parametrize(
    ("turns", "base"),
    [
        (TURNS.replace("whose turn", "who"), BASE),
        (TURNS.replace("Skip(p) ==", "\n\n  Skip(p)  =="), BASE),
        (TURNS.replace("====", "Unused == n + 1\n===="), BASE),
        (TURNS, BASE.replace("Mine(p)", "(* whose *) Mine(p)")),
    ],
)
def test_a_key_does_not_depend_on_remarks_layout_and_what_is_not_used(turns: str, base: str) -> None:
    assert key(turns=turns, base=base) == key()


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(turns=TURNS.replace("n + 1", "n + 2")),
        lambda: key(base=BASE.replace("turn = p", "turn # p")),
        lambda: key(base=BASE.replace("Max,", "Max, Min,")),
        lambda: key(replace(MODEL, constants={"Max": 3, "CanSkip": True})),
        lambda: key(replace(MODEL, invariants=("InRange",))),
        lambda: key(replace(MODEL, deadlock=True)),
        lambda: key(changes={"Turns": TURNS.replace("n + 1", "n + 2")}),
    ],
)
def test_a_key_depends_on_all_that_is_checked(other: object) -> None:
    assert callable(other)
    assert other() != key()


def test_a_key_depends_on_a_module_that_an_instance_is_made_of() -> None:
    turns = TURNS.replace("====", INSTANCE)
    model = replace(MODEL, properties=("Seen",))
    keys = {key(model, turns=turns, Abstract=ABSTRACT.replace("0", str(n))) for n in (0, 1)}
    assert len(keys) == 2
    assert key(turns=turns, Abstract=ABSTRACT) == key()  # Seen is not checked


def test_a_layout_that_means_something_else_has_another_key() -> None:
    nested = "Odd(p) == /\\ p = 1\n          /\\ \\/ n = 0\n             \\/ n = 1\n          /\\ n = 2\n"
    flat = nested.replace("          /\\ n = 2", "             /\\ n = 2")
    old = "Odd(p) == p = 1 /\\ Mine(p) => n % 2 = 1\n"
    assert key(turns=TURNS.replace(old, nested)) != key(turns=TURNS.replace(old, flat))


@pytest.mark.parametrize(("old", "times"), [("n > 0", 3), ("n > 7", 0)])
def test_a_mistake_whose_text_is_not_there_exactly_once_is_refused(old: str, times: int) -> None:
    with pytest.raises(ManifestError, match=f"mistake gone: the text to replace is {times} times in Turns"):
        apply_all("gone", [Patch(old, "TRUE", "Turns")], modules())


def test_the_catalogue_fits_the_specification() -> None:
    manifest = load_manifest()
    specification = {**load(manifest.spec), **load(manifest.path.parent)}
    found = load_catalogue(specification, manifest)
    assert len(found) > 30
    for mutant in found:
        for name, text in mutant.changes.items():
            assert parse(text, mutant.name).name == name


def test_each_action_and_each_property_of_the_specification_has_mutants() -> None:
    manifest = load_manifest()
    specification = {**load(manifest.spec), **load(manifest.path.parent)}
    models = [each for each in manifest.select(which="quick") if each.kind == "model"]
    found = generate(specification, models)
    operators = Operators(closure(specification, "Cases"))
    actions = {name for name in operators.reached(["Next"]) if operators.changes(operators[name].body, {})} - {"Next"}
    helpers = {name for name in actions if operators.assigned(name)}
    assert actions - helpers <= {each.operator for each in found}
    assert len({each.name for each in found}) == len(found)


def test_the_folder_of_modules_is_read(tmp_path: Path) -> None:
    (tmp_path / "Base.tla").write_text(BASE)
    assert load(tmp_path)["Base"].constants == {"Max", "CanSkip"}
