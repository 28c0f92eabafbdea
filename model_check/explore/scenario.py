"""What a scenario is: a few lines of a runner, and how much may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckError
from .memory import InjectedError
from .script import Script

Body = Callable[[Any], None]


@dataclass(frozen=True)
class Scenario:
    """A runner's calls, and what is allowed to happen to them."""

    name: str
    #: number in the catalogue of scenarios, where it is one of those
    number: str
    purpose: str
    body: Body
    #: errors that calls may end with
    allows: tuple[type[BaseException], ...] = ()
    #: copies that a schedule makes fail, with this error
    faults: int = 0
    error: type[BaseException] = InjectedError
    #: bounded waits that a schedule lets run out although others could go on
    timeouts: int = 0
    #: whether copies to staging pages land on a device thread
    slow_device: bool = False
    #: the threads that the body drives: a prefix cache's, or a host mirror's
    script: Callable[..., Any] = Script
    #: of the configuration
    options: Mapping[str, Any] = field(default_factory=dict)


class ScenarioError(CheckError):
    """There is no such scenario."""


class Registry(dict[str, Scenario]):
    """Scenarios by name."""

    def select(self, names: Iterable[str]) -> list[Scenario]:
        """The scenarios of these names; all where none is named. Raises `ScenarioError`."""
        names = list(names) or list(self)
        if unknown := [name for name in names if name not in self]:
            raise ScenarioError(f"there is no scenario {', '.join(unknown)}; `palimpsest explore --list` shows all")
        return [self[name] for name in names]

    def add(
        self, number: str, purpose: str, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> Callable[[Body], Body]:
        """A decorator that registers a function; dashes stand for its name's underscores."""

        def register(body: Body) -> Body:
            name = body.__name__.replace("_", "-")
            assert name not in self, name
            self[name] = Scenario(name, number, purpose, body, options=options or {}, **fields)
            return body

        return register
