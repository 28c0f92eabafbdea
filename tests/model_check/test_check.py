"""`palimpsest check` on tiny models with the real TLC: verdicts, surprises, files and exit statuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest import cli
from palimpsest_model_check import jvm
from palimpsest_model_check.check import Checker, Outcome, surprise
from palimpsest_model_check.errors import ToolMissingError
from palimpsest_model_check.jvm import LARGE, Toolchain, find_toolchain
from palimpsest_model_check.manifest import Manifest, Model, load_manifest
from palimpsest_model_check.output import Kind, Progress, Result

SPECS = Path(__file__).parent / "specs"

COUNTER = """
[threads]
Raise = "committer"

[[model]]
name = "counter"
purpose = "Two processes count to three."
module = "Counter"
states = 15
invariants = ["InRange"]
properties = ["Full"]
[model.constants]
Max = 3
Procs = ["a", "b"]
"""
REACH = """
[[model]]
name = "reach-two"
kind = "reach"
base = "counter"
purpose = "Two are counted."
invariants = ["Small"]
properties = []
expect = "Small"
"""
MUTANT = """
[[model]]
name = "mutant-past"
kind = "mutant"
base = "counter"
purpose = "The counter goes past its end."
kills = "InRange"
[[model.mutates]]
old = "/\\\\ n' = n + 1"
new = "/\\\\ n' = n + 2"
"""
UNEVALUABLE = """
[[model]]
name = "unevaluable"
purpose = "An evaluation error is never a verdict."
module = "Unevaluable"
invariants = ["Itself"]
[model.definitions]
Itself = "n = n"
"""


class Ledger:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.started_names: list[str] = []
        self.finished_names: list[str] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def started(self, model: Model) -> None:
        with self._lock:
            self.started_names.append(model.name)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)

    def progressed(self, model: Model, progress: Progress) -> None:
        assert progress.distinct >= 0

    def finished(self, outcome: Outcome) -> None:
        with self._lock:
            self.finished_names.append(outcome.model.name)
            self.at_once -= 1


def load(folder: Path, *texts: str) -> Manifest:
    path = folder / "manifest.toml"
    path.write_text("".join(texts), encoding="utf-8")
    return load_manifest(path, SPECS)


def check(manifest: Manifest, *names: str, jobs: int = 2, listener: Ledger | None = None) -> dict[str, Outcome]:
    checker = Checker(manifest, find_toolchain(), jobs, listener or Ledger())
    return {outcome.model.name: outcome for outcome in checker.check(manifest.select(names, "full"))}


def palimpsest(folder: Path, *arguments: str) -> int:
    where = ["--manifest", str(folder / "manifest.toml"), "--spec", str(SPECS), "--out", str(folder / "examples")]
    return cli.main(["check", *arguments, *where])


def test_what_is_expected_is_no_surprise_and_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path, COUNTER, REACH, MUTANT)
    out = tmp_path / "outcomes.json"
    assert palimpsest(tmp_path, "--json", str(out)) == 0
    outcomes = {each["model"]: each for each in json.loads(out.read_text())["models"]}
    assert [each["verdict"] for each in outcomes.values()] == ["ok", "Small", "InRange"]
    assert (outcomes["counter"]["distinct"], outcomes["counter"]["counterexample"]) == (15, None)
    shown = capsys.readouterr().out
    assert "all 3 models as expected" in shown
    assert "what changed" not in shown  # expected ones of a whole set are saved only
    saved = json.loads(Path(outcomes["mutant-past"]["counterexample"]).read_text())
    assert [step["action"] for step in saved["steps"]] == ["Init", "Raise", "Raise"]
    assert saved["violated"] == "InRange"


def test_a_model_that_was_named_shows_its_counterexample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path, COUNTER, REACH)
    assert palimpsest(tmp_path, "reach-two") == 0
    shown = capsys.readouterr().out
    for part in ("Raise", "committer", "n: 1 -> 2", "Small: Two are counted.", "reach-two.json"):
        assert part in shown


def test_surprises_exit_with_one_and_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = MUTANT.replace("n + 1", "n + 9")
    load(tmp_path, COUNTER.replace("states = 15", "states = 16"), stale, UNEVALUABLE)
    assert palimpsest(tmp_path, "--jobs", "2") == 1
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "3 of 3 models SURPRISE",
        "15 distinct states, and 16 are expected",
        "the text to replace is 0 times in Counter.tla",
        "evaluation error, and ok is expected",
        "Head",
    ):
        assert part in shown


def test_a_mutant_that_survives_is_a_surprise(tmp_path: Path) -> None:
    harmless = MUTANT.replace("n + 2", "1 + n")
    outcome = check(load(tmp_path, COUNTER, harmless), "mutant-past")["mutant-past"]
    assert outcome.surprise == "ok, and a violation of InRange is expected"


def test_a_temporal_property_is_named_among_several(tmp_path: Path) -> None:
    live = """
[[model]]
name = "live"
kind = "reach"
base = "counter"
purpose = "It never gets past its end."
expect = "Beyond"
properties = ["Full", "Beyond"]
"""
    outcome = check(load(tmp_path, COUNTER, live), "live")["live"]
    assert (outcome.verdict, outcome.surprise) == ("Beyond", None)
    assert outcome.result is not None
    assert outcome.result.kind is Kind.TEMPORAL_PROPERTY


def test_a_refinement_that_fails_is_named_although_tlc_gives_a_place(tmp_path: Path) -> None:
    refining = """
[[model]]
name = "refines"
kind = "reach"
base = "counter"
module = "Refining"
purpose = "A reset is no step of a counter that only goes up."
expect = "RefinesRising"
properties = ["Full", "Refines", "RefinesRising"]
"""
    outcome = check(load(tmp_path, COUNTER, refining), "refines")["refines"]
    assert (outcome.verdict, outcome.surprise) == ("RefinesRising", None)


def test_a_large_model_runs_alone_and_the_small_ones_side_by_side(tmp_path: Path) -> None:
    large = REACH.replace('kind = "reach"', 'kind = "reach"\nsize = "large"')
    ledger = Ledger()
    outcomes = check(load(tmp_path, COUNTER, large, MUTANT), listener=ledger)
    assert [outcome.surprise for outcome in outcomes.values()] == [None] * 3
    assert list(outcomes) == ["counter", "reach-two", "mutant-past"]
    assert ledger.started_names[-1] == ledger.finished_names[-1] == "reach-two"
    assert ledger.most_at_once == 2


def test_memory_bounds_how_many_run_at_once_and_none_starts_without(tmp_path: Path) -> None:
    manifest, ledger = load(tmp_path, COUNTER, REACH, MUTANT), Ledger()

    def none_for_large(heap: jvm.Heap, wanted: int) -> int:
        if heap is LARGE:
            raise ToolMissingError("not enough memory")
        return 1

    Checker(manifest, find_toolchain(), 8, ledger, none_for_large).check(manifest.select(which="full"))
    assert ledger.most_at_once == 1
    big = [replace(model, size="large") for model in manifest.select(["counter"])]
    with pytest.raises(ToolMissingError):
        Checker(manifest, find_toolchain(), 8, ledger, none_for_large).check(big)


def test_a_java_that_cannot_be_run_ends_the_check_as_an_error_of_the_set_up(tmp_path: Path) -> None:
    manifest = load(tmp_path, COUNTER, REACH)
    broken = Toolchain(tmp_path / "no-java", find_toolchain().jar)
    with pytest.raises(ToolMissingError, match="no-java"):
        Checker(manifest, broken, 2, Ledger()).check(manifest.select())


def test_the_list_has_each_model_with_its_purpose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path, COUNTER, REACH)
    assert palimpsest(tmp_path, "--list") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("2 models", "counter", "reach-two", "ok, 15", "states"):
        assert part in shown


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["nothing"], {}, "no model nothing"),
        ([], {jvm.JAVA_VARIABLE: "/nowhere/java"}, "PALIMPSEST_JAVA"),
        ([], {jvm.JAR_VARIABLE: "/nowhere/tla2tools.jar"}, "TLA2TOOLS_JAR"),
    ],
)
def test_bad_usage_and_missing_tools_exit_with_two(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    variables: dict[str, str],
    says: str,
) -> None:
    load(tmp_path, COUNTER)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert palimpsest(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err


def test_an_empty_or_missing_manifest_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert palimpsest(tmp_path) == 2
    load(tmp_path, "")
    assert palimpsest(tmp_path) == 2
    assert "no models" in capsys.readouterr().err


@pytest.mark.parametrize(("distinct", "says"), [(0, "nothing was checked"), (14, "14 distinct states"), (15, None)])
def test_a_wrong_number_of_states_is_a_surprise(tmp_path: Path, distinct: int, says: str | None) -> None:
    model = load(tmp_path, COUNTER).models["counter"]
    found = surprise(model, Result(Kind.OK, None, Progress(distinct, distinct, 0), (), None, "", (), 0.1, 0))
    assert (found is None) if says is None else (found is not None and says in found)


def test_the_installed_models_can_be_prepared() -> None:
    manifest = load_manifest()
    assert len(manifest.models) > 0


def test_random_behaviors_are_those_of_the_seed_and_find_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path, COUNTER.replace("states = 15", 'set = "random"'), MUTANT)
    out = tmp_path / "outcomes.json"
    assert palimpsest(tmp_path, "--simulate", "5", "--depth", "4", "--seed", "1", "--json", str(out)) == 0
    holds, broken = json.loads(out.read_text())["models"]
    assert (holds["model"], holds["verdict"], holds["distinct"], holds["generated"]) == ("counter", "ok", 0, 5 * 4 + 1)
    assert (broken["model"], broken["verdict"]) == ("mutant-past", "InRange")
    assert "21 visited" in capsys.readouterr().out


def test_a_server_and_a_worker_find_the_states_that_one_process_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = COUNTER.replace('name = "counter"', 'name = "wrong"').replace('["InRange"]', '["Small"]')
    load(tmp_path, COUNTER, wrong.partition("[threads]")[2].partition("[[model]]")[1] + wrong.partition("[[model]]")[2])
    assert palimpsest(tmp_path, "counter", "--distributed", "--jobs", "1") == 0
    assert "15" in capsys.readouterr().out
    assert palimpsest(tmp_path, "wrong", "--distributed", "--jobs", "1") == 1
    assert "TLC names it where one process checks the model" in capsys.readouterr().out


def test_the_distributed_mode_refuses_what_it_does_not_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path, COUNTER, MUTANT)
    assert palimpsest(tmp_path, "mutant-past", "--distributed") == 2
    assert "is for models that must hold" in capsys.readouterr().err
    assert palimpsest(tmp_path, "--distributed") == 2
    assert "models that are named" in capsys.readouterr().err
