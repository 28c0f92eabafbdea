"""Fixtures of all tests, and what the session says at its end of the protocol's actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from palimpsest.actions import ACTIONS
from palimpsest.host_mirror.actions import MIRROR_ACTIONS
from tests.mirror_support import traced_mirrors
from tests.support import Script

torch.set_num_threads(2)

#: how often each action of the specifications was taken in the accepted traces of this session
TAKEN: Counter[str] = Counter()
MIRROR_TAKEN: Counter[str] = Counter()


@pytest.fixture(params=["eager", "threaded"])
def eager(request: pytest.FixtureRequest) -> bool:
    """Both modes of the cache."""
    return bool(request.param == "eager")


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator[Callable[..., Script]]:
    """Makes scripted runners. At the end of the test each one's cache holds nothing, and its trace is one that
    the specification accepts, unless the test is marked `forges` with the reason why its trace cannot be."""
    made: list[Script] = []

    def make(*args: Any, **options: Any) -> Script:
        made.append(Script(*args, **options))
        return made[-1]

    yield make
    forged = request.node.get_closest_marker("forges")
    for each in made:
        each.close()
        if forged is None:
            verdict = each.verdict()
            assert verdict.ok, str(verdict)
            TAKEN.update(verdict.actions)


@pytest.fixture(autouse=True)
def _mirrors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every host mirror that a test makes is traced, and its trace replayed at the test's end."""
    with traced_mirrors() as traces:
        yield
    if request.node.get_closest_marker("forges") is None:
        for verdict in traces.verdicts():
            assert verdict.ok, str(verdict)
            MIRROR_TAKEN.update(verdict.actions)


@pytest.fixture(scope="session")
def taken() -> Counter[str]:
    """Where a test counts the actions of an accepted trace that it recorded by itself."""
    return TAKEN


def untaken() -> list[str]:
    """The actions of the specifications that no accepted trace of this session has."""
    return sorted(ACTIONS.keys() - TAKEN.keys()) + sorted(MIRROR_ACTIONS.keys() - MIRROR_TAKEN.keys())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many of the specifications' actions the session's traces took."""
    for system, actions, taken in (("cache", ACTIONS, TAKEN), ("mirror", MIRROR_ACTIONS, MIRROR_TAKEN)):
        if taken:
            missing = sorted(actions.keys() - taken.keys())
            says = f"{system}: {len(actions) - len(missing)} of the specification's {len(actions)} actions in"
            says = f"{says} {sum(taken.values()):,} replayed events"
            terminalreporter.write_line(says + (f"; none of {', '.join(missing)}" if missing else ""))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A whole session in which some action never occurred has failed."""
    config = session.config
    selected = bool(config.option.keyword or config.option.markexpr or config.option.collectonly)
    if exitstatus == 0 and not selected and config.args == config.getini("testpaths") and untaken():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
