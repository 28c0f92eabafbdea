"""What a run measured, as data: the same in memory, in JSON, in the table and in the docs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: of the JSON file
SCHEMA = 2
#: what a save may take beyond the device work that it must wait for
SAVE_GOAL_US = 150


@dataclass(frozen=True)
class Repeat:
    """The medians of one repeat, in microseconds per step."""

    p50_us: float
    floor_p50_us: float


@dataclass(frozen=True)
class Measured:
    """One workload: the cache's time per step and the floor's, over all repeats of a run."""

    workload: str
    title: str
    goal: float
    repeats: Sequence[Repeat]
    rows_checked: int
    rows_wrong: int

    @property
    def p50_us(self) -> float:
        """The best repeat's median."""
        return min(repeat.p50_us for repeat in self.repeats)

    @property
    def floor_p50_us(self) -> float:
        """The best repeat's median of the floor."""
        return min(repeat.floor_p50_us for repeat in self.repeats)

    @property
    def ratio(self) -> float:
        """The cache's time as a multiple of the floor's, each at its best in this run."""
        return self.p50_us / self.floor_p50_us

    @property
    def met(self) -> bool:
        """Whether the goal is met, to the two places that are shown."""
        return round(self.ratio, 2) <= self.goal


@dataclass(frozen=True)
class GrowthPoint:
    """A decode step of `requests` among `live` ones, in a pool of `slots`."""

    sweep: str
    slots: int
    live: int
    requests: int
    p50_us: float
    floor_p50_us: float
    rows_wrong: int

    @property
    def us_per_live_request(self) -> float:
        """The step's time beyond its copies, per live request."""
        return (self.p50_us - self.floor_p50_us) / self.live


@dataclass(frozen=True)
class TracingCost:
    """What a sink adds to a decode step, beside a step of `step_us` whose forward the bench stands in for."""

    sink: str
    goal_percent: float
    step_us: float
    p50_us: float
    off_p50_us: float
    rows_wrong: int

    @property
    def percent(self) -> float:
        """The added time, in percent of a step."""
        return 100 * (self.p50_us - self.off_p50_us) / self.step_us


@dataclass(frozen=True)
class SaveCost:
    """How long a save keeps the engine thread beyond the device's work, in microseconds, and how fast rows land."""

    workload: str
    saves: int
    own_p50_us: float
    own_max_us: float
    landed_bytes_per_s: float
    pinned_bytes_per_s: float

    @property
    def of_pinned_rate(self) -> float:
        """The rate at which rows land, as a part of that of pinned copies alone."""
        return self.landed_bytes_per_s / self.pinned_bytes_per_s


@dataclass
class Report:
    """A run: when, on what, and what was measured."""

    date: str
    device: str
    threads: int
    quick: bool
    versions: dict[str, str]
    workloads: list[Measured] = field(default_factory=list)
    growth: list[GrowthPoint] = field(default_factory=list)
    tracing: list[TracingCost] = field(default_factory=list)
    saves: list[SaveCost] = field(default_factory=list)

    @property
    def rows_wrong(self) -> int:
        """Wrong rows in all that was run."""
        steps = [each.rows_wrong for each in self.workloads]
        points = [each.rows_wrong for each in self.growth]
        return sum(steps) + sum(points) + sum(each.rows_wrong for each in self.tracing)

    def save(self, path: Path) -> None:
        """Write the run as JSON: its figures, and what follows from them for readers of the file."""
        path.write_text(json.dumps({"schema": SCHEMA, **self._plain()}, indent=1) + "\n", encoding="utf-8")

    def _plain(self) -> dict[str, Any]:
        plain = asdict(self)
        derived = {
            "workloads": ("p50_us", "floor_p50_us", "ratio", "met"),
            "growth": ("us_per_live_request",),
            "tracing": ("percent",),
            "saves": ("of_pinned_rate",),
        }
        for section, names in derived.items():
            for each, line in zip(getattr(self, section), plain[section], strict=True):
                line.update({name: getattr(each, name) for name in names})
        return plain

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read what `save` wrote. Raises `ValueError` for a file that is not one, or of another schema."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["schema"] != SCHEMA:
                raise ValueError(f"{path} has schema {found['schema']}, and this reads {SCHEMA}")
            head = {name: found[name] for name in ("date", "device", "threads", "quick", "versions")}
            return cls(
                **head,
                workloads=[_measured(line) for line in found["workloads"]],
                growth=[GrowthPoint(**_without(line, "us_per_live_request")) for line in found["growth"]],
                tracing=[TracingCost(**_without(line, "percent")) for line in found["tracing"]],
                saves=[SaveCost(**_without(line, "of_pinned_rate")) for line in found["saves"]],
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a run of `palimpsest bench`: {error!r}") from error


def _measured(line: dict[str, Any]) -> Measured:
    repeats = [Repeat(**repeat) for repeat in line["repeats"]]
    rest = _without(line, "p50_us", "floor_p50_us", "ratio", "met", "repeats")
    return Measured(**rest, repeats=repeats)


def _without(line: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in names}
