"""A small specification with its mutants, and trials of them without TLC."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from palimpsest_model_check.manifest import Model
from palimpsest_model_check.mutants.generator import Mutant, generate
from palimpsest_model_check.mutants.runner import Case, Runner
from palimpsest_model_check.mutants.syntax import Module, parse
from palimpsest_model_check.mutants.trial import Verdict
from palimpsest_model_check.tlc import Runs

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
    """Trials without TLC: `kills` has the property by which a model kills a mutant, `adds` the guards whose loss adds
    steps."""

    def __init__(self, kills: Mapping[tuple[str, str], str | None], adds: Collection[str]) -> None:
        self.kills, self.adds = kills, adds
        #: models in which a mutant has states without end, and the limits that these runs got
        self.endless: frozenset[str] = frozenset()
        self.limits: list[tuple[str, float | None]] = []
        self.calls: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.runs = Runs()

    def run(self, model: Model, changes: Mapping[str, str], limit_s: float | None = None) -> Verdict:
        if not changes:  # the model as it is
            return Verdict(None, "ok", 0.0)
        with self.lock:
            self.calls["run"] += 1
        if model.name in self.endless:
            self.limits.append((model.name, limit_s))
            return Verdict(None, "time limit", 0.0)
        found = [by for (name, dropped), by in self.kills.items() if name == model.name and dropped in lost(changes)]
        return Verdict(found[0], found[0], 0.0) if found and found[0] else Verdict(None, "ok", 0.0)

    def matterless(self, model: Model, modules: Mapping[str, Module], mutants: Sequence[Mutant]) -> set[str]:
        with self.lock:
            self.calls["matterless"] += 1
        return {each.name for each in mutants if not any(dropped in self.adds for dropped in lost(each.changes))}


def lost(changes: Mapping[str, str]) -> list[str]:
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
