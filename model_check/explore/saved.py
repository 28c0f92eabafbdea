"""A schedule as a file, and as a test."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckError
from .explore import Run, run_once
from .scenarios import SCENARIOS
from .strategies import Saved

#: a thread, how it goes on, and for how many steps
Turn = tuple[str, str, int]

_VERSION = 1

_TEST = '''"""{says}"""

from palimpsest_model_check.explore.saved import replay

TURNS = [
{turns}
]


def test_{function}():
    run, missed = replay({scenario!r}, TURNS)
    assert missed == 0, "the code has changed: the schedule does not fit it any more"
    assert run.finding is None, str(run.finding)
'''


class ScheduleError(CheckError):
    """A file that is no saved schedule, or one of an unknown scenario."""


@dataclass(frozen=True)
class Schedule:
    """Who took the steps of a run, and what was found."""

    scenario: str
    turns: list[Turn]
    finding: str

    @classmethod
    def of(cls, run: Run) -> Schedule:
        """The schedule of a run."""
        steps = itertools.groupby((step.thread, step.how) for step in run.steps)
        turns = [(thread, how, len(list(group))) for (thread, how), group in steps]
        return cls(run.scenario.name, turns, str(run.finding or "nothing"))

    @classmethod
    def load(cls, path: Path) -> Schedule:
        """The schedule in a file. Raises `ScheduleError`."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            turns = [(str(thread), str(how), int(count)) for thread, how, count in value["turns"]]
            schedule = cls(str(value["scenario"]), turns, str(value["finding"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ScheduleError(f"{path}: not a saved schedule: {error}") from error
        if value.get("schedule") != _VERSION:
            raise ScheduleError(f"{path}: schedule version {value.get('schedule')!r}, and this reads {_VERSION}")
        return schedule

    def save(self, folder: Path) -> Path:
        """Write the schedule to a file of the scenario's name; gives its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.scenario}.json"
        lines = ",\n  ".join(json.dumps(turn) for turn in self.turns)
        head: dict[str, Any] = {"schedule": _VERSION, "scenario": self.scenario, "finding": self.finding}
        text = json.dumps(head, indent=1)[:-2]
        path.write_text(f'{text},\n "turns": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
        return path

    def as_test(self) -> str:
        """The text of a test that runs the schedule and fails while it finds something."""
        turns = "\n".join(f'    ("{thread}", "{how}", {count}),' for thread, how, count in self.turns)
        says = self.finding.replace("\\", "\\\\").replace('"', "'")
        return _TEST.format(
            says=f"The schedule that found, in the scenario {self.scenario}: {says}",
            turns=turns,
            function=self.scenario.replace("-", "_"),
            scenario=self.scenario,
        )


def replay(name: str, turns: list[Turn]) -> tuple[Run, int]:
    """A scenario's run with a saved schedule, and how many turns it did not take as saved. Raises `ScenarioError` for
    an unknown scenario."""
    (scenario,) = SCENARIOS.select([name])
    strategy = Saved([(thread, how) for thread, how, count in turns for _ in range(count)])
    run = run_once(scenario, strategy)
    return run, strategy.missed(run.steps)
