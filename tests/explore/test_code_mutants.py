"""Mutants of the code: exploring catches each slip, by the property it breaks, and blames nobody else."""

from __future__ import annotations

import pytest
from rich.console import Console

from palimpsest_model_check.errors import ManifestError
from palimpsest_model_check.explore.scenarios import SCENARIOS
from palimpsest_model_check.mutants.code import CodeMutant, load_code_mutants
from palimpsest_model_check.mutants.code_report import cells, run_code_mutants
from palimpsest_model_check.mutants.code_trial import try_all

#: the mistakes that real systems made, as far as they are slips of the code
MISTAKES = {
    "escalation re-queues a claimed task": "claimed-queued-again",
    "done set before the completion record": "done-before-record",
    "failure woken before its record": "failure-woken-first",
    "save waits for host-ready instead of done": "waits-for-host-ready",
    "append to a task that lost the slot": "robbed-task-grows",
    "scatter ignores taken-over rows": "robbed-rows-written",
    "page released at the drain instead of at the pool write": "page-released-at-the-drain",
    "page released before the pool write": "page-released-before-the-pool-write",
    "no version check": "no-version-check",
    "preserve after the claim": "preserved-after-the-claim",
    "preserve of nothing": "nothing-preserved",
    "read not dropped on an error": "read-not-dropped",
    "ticket released twice": "ticket-given-back-with-its-first-task",
    "ticket never released": "ticket-never-given-back",
    "failed save keeps its page": "failed-save-keeps-its-page",
    "failed save keeps its bytes": "failed-save-keeps-its-bytes",
    "flush waits under the state lock": "flush-waits-under-the-state-lock",
    "early-planned hit not re-planned": "same-step-hit-not-planned-again",
    "deferred write of an aborted request dropped": "ended-requests-rows-not-written",
    "recycled slot keeps another tenant's rows of a key not written": "key-not-written-keeps-the-old-tenants-rows",
    "absent hit served from the next tenant": "absent-rows-read-from-the-pool",
    "waiter not woken at shutdown": "waiter-not-woken-at-shutdown",
    "step consumed twice": "step-taken-in-two-sections",
    "completion matched by something else than the task": "other-tasks-rows-committed",
}


def test_the_catalogue_has_the_mistakes_that_real_systems_made_and_their_scenarios():
    mutants = load_code_mutants()
    assert len(mutants) >= 25
    assert set(MISTAKES.values()) <= mutants.keys()
    assert {name for each in mutants.values() for name in each.scenarios} <= SCENARIOS.keys()


@pytest.mark.slow
def test_each_slip_is_caught_by_its_property_and_the_unchanged_code_is_not_blamed():
    trials = try_all(list(load_code_mutants().values()), 2, lambda _: None)
    assert [f"{trial.mutant.name} {trial.wrong}" for trial in trials if trial.wrong] == []
    assert all(trial.caught and trial.caught.event != "none" for trial in trials)
    assert len({trial.by for trial in trials}) >= 10


def test_a_change_that_is_no_slip_survives():
    old = "        self.wake(tasks)\n\n    @action"
    edit = "prefix_cache.committer", old, old.replace("\n", "  # all\n", 1)
    harmless = CodeMutant("harmless", "A comment.", "RecordBeforeWake", ("save-waits-for-the-last-write",), (edit,))
    (trial,) = try_all([harmless], 1, lambda _: None)
    assert trial.caught is None
    assert trial.wrong == f"survives {trial.schedules:,} schedules"
    assert cells(trial)[1] == "SURVIVES"


@pytest.mark.parametrize(("old", "times"), [("nobody wrote this", 0), ("self", "many")])
def test_a_text_that_is_not_there_exactly_once_is_an_error(old, times):
    mutant = CodeMutant("stale", "", "", ("one-page",), (("prefix_cache.committer", old, ""),))
    with pytest.raises(ManifestError, match=r"stale: prefix_cache.committer has \d+ times"):
        try_all([mutant], 1, lambda _: None)


def test_the_table_says_by_which_property_at_which_event(capsys):
    assert run_code_mutants(["done-before-record"], 1, Console(width=200))
    out = capsys.readouterr().out
    for word in ("save-waits-for-the-last-write, replay", "RecordBeforeWake", "palimpsest-committer wake"):
        assert word in out
    assert "1 of 1 caught" in out
    assert "0 false alarms on the unchanged code, which takes 1 of the schedules turn by turn" in " ".join(out.split())
