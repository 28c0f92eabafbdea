"""What an operator can turn on, under the reference runner's load: blocks reused under pressure, hits on a step's own
rows, preemptions, budget flushes. No right row is reported, and what the recorder keeps is a part of the run."""

from __future__ import annotations

import pytest

from palimpsest.runners.reference import ReferenceRunner
from palimpsest_model_check.replay.machine import load, replay
from tests.scenario.test_demo import SMALL, small_workload


def served(monkeypatch, **settings: str) -> ReferenceRunner:
    """A run of the reference runner with settings of the environment; every row is right."""
    for name, value in settings.items():
        monkeypatch.setenv(f"PALIMPSEST_CACHE_{name.upper()}", value)
    runner = ReferenceRunner(small_workload(30), SMALL)
    report = runner.run()
    assert report.right
    assert report.cache.rows_preserved > 0
    return runner


@pytest.mark.parametrize("checks", ["digest", "poison"])
def test_no_right_row_is_reported(monkeypatch, checks):
    runner = served(monkeypatch, row_checks=checks)
    assert runner.cache.config.row_checks.value == checks
    assert runner.cache.stats.rows_corrupt == 0


def test_a_whole_run_in_the_recorder_is_accepted(monkeypatch, tmp_path):
    runner = served(monkeypatch, flight_recorder_events="1000000")
    path = runner.cache.recording.recorder.dump(tmp_path / "run.ndjson")
    verdict = replay("run", *load(path))
    assert verdict.ok, str(verdict)
    assert verdict.accepted > 1000
