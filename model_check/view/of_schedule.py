"""A schedule that `palimpsest explore` saved, run again, as a picture."""

from __future__ import annotations

from pathlib import Path

from ..explore.explore import Run
from ..explore.finding import Finding
from ..explore.saved import Schedule, replay
from ..explore.threads import GOES, Step
from ..replay.verdict import RejectedError
from ..words import in_words
from .machine_strips import MachineStrips
from .of_trace import notes_of, rejected
from .picture import Failure, Moment, Picture, Spans, in_order


def schedule_picture(path: Path) -> Picture:
    """The picture of a saved schedule, of the code as it is now. Raises `ScheduleError` and `ScenarioError`."""
    schedule = Schedule.load(path)
    run, missed = replay(schedule.scenario, schedule.turns)
    return run_picture(run, schedule.finding, missed)


def run_picture(run: Run, found_before: str, missed: int) -> Picture:
    """The picture of a run. `found_before` is what the saved run found, `missed` how many of its turns the code does
    not allow any more."""
    watched, failure = _watched(run)
    strips, touches = watched.strips.finish(len(run.steps))
    moments = tuple(_moment(number, step) for number, step in enumerate(run.steps, 1))
    spans = Spans()
    for at, step in enumerate(run.steps):
        for event in step.events:
            spans.note(step.thread, _lane(step.thread), event.action, at)
    lanes = in_order(moment.lane for moment in moments)
    about = f"{len(moments)} steps of the scenario {run.scenario.name}: {run.scenario.purpose}"
    if missed:
        about += f" The code has changed: {missed} turns could not be taken as saved."
    if run.finding is None and found_before != "nothing":
        about += f" The saved run found: {found_before}; this one finds nothing."
    title = f"schedule of {run.scenario.name}"
    return Picture(title, "schedule", about, lanes, moments, strips, touches, tuple(spans.found), failure)


def _watched(run: Run) -> tuple[MachineStrips, Failure | None]:
    watched = MachineStrips(run.config)
    last = max(len(run.steps) - 1, 0)
    failure = _found(run.finding, last)
    for at, step in enumerate(run.steps):
        for event in step.events:
            try:
                watched.take(event, at)
            except RejectedError as error:
                return watched, rejected(error, at, event)
    return watched, failure


def _found(finding: Finding | None, at: int) -> Failure | None:
    if finding is None:
        return None
    properties = tuple((name, in_words(name)) for name in finding.properties)
    return Failure(at, f"{finding.kind}: {finding.says}", properties, (("what was found", finding.says),))


def _moment(number: int, step: Step) -> Moment:
    goes = step.operation if step.how == GOES else f"{step.operation}: {step.how}"
    notes = (goes, *(note for event in step.events for note in (event.action.upper(), *notes_of(event))))
    return Moment(number, _lane(step.thread), step.thread, " ".join(step.actions) or f"[{goes}]", notes)


def _lane(thread: str) -> str:
    return thread.removeprefix("palimpsest-")
