"""Which mutants change nothing in a model: what one run of TLC says of all, against a run of TLC for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest_model_check.jvm import find_toolchain
from palimpsest_model_check.manifest import Manifest, Model, load_manifest
from palimpsest_model_check.mutants.generator import Mutant, generate
from palimpsest_model_check.mutants.probe import questions
from palimpsest_model_check.mutants.syntax import Module, load
from palimpsest_model_check.mutants.trial import Trials
from palimpsest_model_check.tlc import Run, run_tlc
from palimpsest_model_check.workspace import prepare

BASE = r"""---- MODULE Base ----
EXTENDS Naturals, Sequences
CONSTANTS Max
VARIABLES n, turn, queue
vars == <<n, turn, queue>>
Mine(p) == turn = p
Calm(p) == /\ Mine(p)
           /\ n <= Max \* never more
====
"""
ROOT = r"""---- MODULE Root ----
EXTENDS Base
Init == n = 0 /\ turn = 0 /\ queue = <<>>
\* a comment
Raise(p) ==
    /\ Mine(p) /\ n < Max          \* whose turn it is
    /\ \/ p = 0
       \/ /\ p = 1 /\ n > 0
          /\ LET more == n + 1
             IN  more <= Max /\ p < 2
    /\ n' = n + 1 /\ turn' = 1 - turn
    /\ UNCHANGED queue
Queue(p) ==
    /\ Calm(p) /\ n = Max /\ Len(queue) < 2
    /\ queue' = Append(queue, "a  b")
    /\ UNCHANGED <<n, turn>>
Take == /\ queue # <<>> /\ Len(queue[1]) = 4
        /\ n = Max /\ (\A q \in {0, 1} : (n # q /\ q < 9) \/ q = 1)
        /\ queue' = Tail(queue) /\ n' = 0 /\ turn' = 0
Never == /\ n > Max
         /\ IF turn = 0 THEN n' = 0 /\ UNCHANGED turn ELSE n' = 1 /\ turn' = 0
         /\ queue' = <<>>
Same == n >= 0 /\ n = Max /\ UNCHANGED vars
Next ==
    \/ \E p \in 0..1 : Raise(p)
    \/ \E p \in 0..1 : Queue(p)
    \/ Take \/ Same \/ Never
Spec == Init /\ [][Next]_vars
Small == n <= Max
====
"""
MANIFEST = """
[[model]]
name = "small"
purpose = "Counts and queues."
module = "Root"
states = 9
invariants = ["Small"]
[model.constants]
Max = 2
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "Base.tla").write_text(BASE, encoding="utf-8")
    (tmp_path / "Root.tla").write_text(ROOT, encoding="utf-8")
    (tmp_path / "manifest.toml").write_text(MANIFEST, encoding="utf-8")
    return load_manifest(tmp_path / "manifest.toml", spec=tmp_path)


def all_of(manifest: Manifest) -> tuple[dict[str, Module], Model, list[Mutant]]:
    modules, (model,) = load(manifest.spec), manifest.select(which="quick")
    return modules, model, [each for each in generate(modules, [model]) if each.adds]


def states(manifest: Manifest, model: Model, changes: dict[str, str], folder: Path) -> int | None:
    """How many distinct states TLC finds; None where it cannot evaluate one."""
    folder.mkdir()
    module, config = prepare(replace(model, invariants=(), deadlock=False), manifest, folder)
    for name, text in changes.items():
        (folder / f"{name}.tla").write_text(text, encoding="utf-8")
    result = run_tlc(Run(module, config, deadlock=False), find_toolchain())
    return result.progress.distinct if result.kind.value == "ok" else None


def words_of(mutants: Iterable[Mutant]) -> set[str]:
    return {each.says.partition("guard  ")[2] for each in mutants}


def test_what_one_run_says_to_add_nothing_leaves_the_states_as_they_are_one_by_one(
    manifest: Manifest, tmp_path: Path
) -> None:
    modules, model, mutants = all_of(manifest)
    nothing = Trials(manifest, find_toolchain()).matterless(model, modules, mutants)
    same = [each for each in mutants if each.name in nothing]
    alternatives = r"\/ p = 0 \/ /\ p = 1 /\ n > 0 /\ LET more == n + 1 IN more <= Max /\ p < 2"
    inside = {"p = 1", "n > 0", "more <= Max", "p < 2", r"LET more == n + 1 IN more <= Max /\ p < 2"}
    of_take = {"Len(queue[1]) = 4", "n = Max", r"\A q \in {0, 1} : (n # q /\ q < 9) \/ q = 1"}
    assert words_of(same) == {alternatives, "n <= Max", "n >= 0"} | inside | of_take
    adding = [each for each in mutants if each not in same]
    assert words_of(adding) >= {"Mine(p)", "n < Max", "Calm(p)", "n = Max", "Len(queue) < 2"}
    # of what TLC cannot evaluate without its guard nothing is said
    assert words_of(adding) >= {"queue # <<>>", "n # q", "q < 9"}
    base = states(manifest, model, {}, tmp_path / "base")
    assert {states(manifest, model, dict(each.changes), tmp_path / each.name) for each in same} == {base}
    unreadable = next(each for each in adding if "queue # <<>>" in each.says)
    assert states(manifest, model, dict(unreadable.changes), tmp_path / "unreadable") is None


def test_an_update_matters_where_it_is_come_to(manifest: Manifest) -> None:
    modules, model, _ = all_of(manifest)
    updates = [each for each in generate(modules, [model]) if each.kind in ("update", "component")]
    nothing = Trials(manifest, find_toolchain()).matterless(model, modules, updates)
    assert {each.operator for each in updates} == {"Raise", "Queue", "Take", "Never"}
    assert {each.operator for each in updates if each.name in nothing} == {"Never"}


def test_a_guard_that_a_step_may_meet_several_times_is_not_asked_for(manifest: Manifest) -> None:
    modules, _, mutants = all_of(manifest)
    asked = questions(modules, "Root", mutants).asked.values()
    assert words_of(mutants) - words_of(asked) == {"n # q", "q < 9"}
