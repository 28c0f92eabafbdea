"""What a kind of evidence is: a name, what it shows, and a function that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..errors import CheckError
from .evidence import Detail, Evidence, Verdict

#: what is said of what went wrong, before it is cut off
_MOST_SAID = 400


class MissingError(CheckError):
    """A kind of evidence cannot be had here: what it needs is not part of this installation."""


@dataclass(frozen=True)
class Setting:
    """How evidence is to be had."""

    #: a sample of each kind, in minutes; else all there is
    quick: bool
    #: processes at a time
    jobs: int
    #: of whatever is drawn at random
    seed: int
    console: Console
    #: where what is found is saved: counterexamples, schedules, traces; nowhere for None
    findings: Path | None = None


@dataclass(frozen=True)
class Found:
    """What a kind's function gives."""

    count: int
    #: plural
    unit: str
    #: what is not as it must be, a line each
    wrong: list[str]
    #: how the count is made up
    says: str = ""
    detail: Detail | None = None


@dataclass(frozen=True)
class Kind:
    """One kind of evidence."""

    name: str
    what: str
    run: Callable[[Setting], Found]
    #: whether it keeps all the setting's processes busy by itself; else it needs about one, and runs beside others
    alone: bool = False

    def evidence(self, setting: Setting) -> Evidence:
        """Run it. What cannot be run fails, unless it needs something that this installation does not have."""
        start = time.monotonic()
        try:
            found = self.run(setting)
        except MissingError as error:
            return self._evidence(Found(0, "", []), Verdict.SKIPPED, start, str(error))
        except Exception as error:  # whatever keeps evidence from being had: it is not there
            return self._evidence(Found(0, "", []), Verdict.FAILS, start, f"{type(error).__name__}: {error}")
        if found.wrong or not found.count:
            says = "; ".join(found.wrong) or f"no {found.unit}: nothing was shown"
            return self._evidence(found, Verdict.FAILS, start, says)
        return self._evidence(found, Verdict.HOLDS, start, found.says)

    def _evidence(self, found: Found, verdict: Verdict, start: float, says: str) -> Evidence:
        says = says if len(says) <= _MOST_SAID else f"{says[:_MOST_SAID]}..."
        seconds = round(time.monotonic() - start, 1)
        return Evidence(self.name, self.what, found.count, found.unit, verdict, seconds, says, found.detail)


def kind(name: str, what: str, *, alone: bool = False) -> Callable[[Callable[[Setting], Found]], Kind]:
    """A decorator that makes a function a kind of evidence."""
    return lambda run: Kind(name, what, run, alone)


class Kinds(dict[str, Kind]):
    """Kinds by name, in the order in which they are told."""

    @classmethod
    def of(cls, *kinds: Kind) -> Kinds:
        """These kinds."""
        return cls({each.name: each for each in kinds})

    def select(self, names: Iterable[str]) -> list[Kind]:
        """The kinds of these names; all where none is named. Raises `CheckError`."""
        names = list(names) or list(self)
        if unknown := [name for name in names if name not in self]:
            raise CheckError(f"there is no kind of evidence {', '.join(unknown)}; there are {', '.join(self)}")
        return [self[name] for name in names]
