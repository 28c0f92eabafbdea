"""What a run of `palimpsest verify` leaves: a report with one piece of evidence per kind, as data and as JSON.

Whoever renders a report (a table, a page) reads it from here: nothing else of a run is needed.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckError

#: of the JSON form
SCHEMA = 2


class ReportError(CheckError):
    """A file that is no report."""


class Verdict(enum.StrEnum):
    """What a kind of evidence says."""

    HOLDS = "holds"
    FAILS = "fails"
    #: it could not be run here; `Evidence.says` tells why
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Detail:
    """A table behind a piece of evidence: a line per model, mutant, scenario or trace."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Evidence:
    """What one kind of evidence gave."""

    #: its name, as `palimpsest verify KIND` takes it
    kind: str
    #: what it shows, in a sentence without its full stop
    what: str
    #: how many of what: `unit` is a plural ("models", "schedules")
    count: int
    unit: str
    verdict: Verdict
    seconds: float
    #: in a line: what was found wrong, why it was skipped, or how the count is made up; may be empty
    says: str = ""
    detail: Detail | None = None


@dataclass(frozen=True)
class Report:
    """A whole run."""

    #: of the package
    version: str
    quick: bool
    #: when it began, ISO 8601 with the offset
    started: str
    evidence: tuple[Evidence, ...]
    #: from its beginning to its end; some kinds run side by side
    seconds: float

    @property
    def ok(self) -> bool:
        """The verdict: nothing fails, and something holds."""
        verdicts = [each.verdict for each in self.evidence]
        return Verdict.FAILS not in verdicts and Verdict.HOLDS in verdicts

    def to_json(self) -> dict[str, Any]:
        """The report as JSON can say it."""
        return {"report": SCHEMA, "ok": self.ok, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Report:
        """The report of `to_json`. Raises `ReportError`."""
        try:
            if value["report"] != SCHEMA:
                raise ReportError(f"a report of version {value['report']!r}, and this reads {SCHEMA}")
            evidence = tuple(_evidence(each) for each in value["evidence"])
            seconds = float(value["seconds"])
            return cls(str(value["version"]), bool(value["quick"]), str(value["started"]), evidence, seconds)
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"not a report: {error!r}") from error

    def save(self, path: Path) -> None:
        """Write the report to a file as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Report:
        """The report in a file. Raises `ReportError`."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ReportError(f"{path}: not a report: {error}") from error
        return cls.from_json(value)


def _evidence(value: dict[str, Any]) -> Evidence:
    detail = value["detail"]
    table = Detail(tuple(detail["columns"]), tuple(tuple(row) for row in detail["rows"])) if detail else None
    return Evidence(
        str(value["kind"]), str(value["what"]), int(value["count"]), str(value["unit"]), Verdict(value["verdict"]),
        float(value["seconds"]), str(value["says"]), table,
    )  # fmt: skip
