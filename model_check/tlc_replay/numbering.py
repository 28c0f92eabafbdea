"""Numbers and names given out again: a replay counts only what it replays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Numbers:
    """Numbers given out again, as the specification counts what is replayed."""

    known: dict[int, int] = field(default_factory=dict)

    def new(self, number: int) -> int:
        """The number's own, the next one where it has none."""
        return self.known.setdefault(number, len(self.known) + 1)

    def of(self, numbers: Iterable[Any]) -> list[int]:
        """Those of the numbers that have one."""
        return [self.known[int(number)] for number in numbers if int(number) in self.known]


class Names:
    """Few names for many requests: one that has ended gives its name to a later one."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self._now: dict[str, str] = {}
        self._free: list[str] = []

    def of(self, request: str) -> str:
        """The name of a request, a new one where it has none."""
        if request not in self._now:
            if not self._free:
                self._free.append(f"r{len(self.given)}")
                self.given.append(self._free[-1])
            self._now[request] = self._free.pop()
        return self._now[request]

    def end(self, requests: Iterable[str]) -> None:
        """The names of these requests can be given again."""
        self._free += [self._now.pop(request) for request in requests if request in self._now]


class Lives:
    """The generation of each live request, as the specification counts them."""

    def __init__(self) -> None:
        self._last = 0
        self._now: dict[str, int] = {}

    def of(self, request: str) -> int:
        """The request's generation, a new one where it is not live."""
        if request not in self._now:
            self._last += 1
            self._now[request] = self._last
        return self._now[request]

    def end(self, requests: Iterable[str]) -> None:
        """These requests are not live any more."""
        for request in requests:
            self._now.pop(request, None)

    def renew(self) -> None:
        """A new epoch: each live request begins a new generation, in the order of the old ones."""
        living = sorted(self._now, key=lambda request: self._now[request])
        self._now = {request: self._last + place for place, request in enumerate(living, 1)}
        self._last += len(living)
