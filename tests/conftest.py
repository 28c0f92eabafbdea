"""Fixtures of all tests, and what the session says at its end of the protocols' actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from palimpsest.host_mirror.actions import MIRROR_ACTIONS
from tests.mirror_support import traced_mirrors
from tests.support import Script, tag_of

pytest_plugins = ["palimpsest.testing", "pytester"]

torch.set_num_threads(2)

# generated programs: always the same few by default, `--hypothesis-profile soak` for many others
_ANY_TIME: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("few", derandomize=True, max_examples=30, stateful_step_count=25, **_ANY_TIME)
settings.register_profile("soak", max_examples=1000, stateful_step_count=60, **_ANY_TIME)
settings.load_profile("few")

#: how often each action of the host mirror was taken in the accepted traces of this session
MIRROR_TAKEN: Counter[str] = Counter()


def pytest_palimpsest_tag() -> Any:
    """The rows of these tests carry their identities."""
    return tag_of


@pytest.fixture(params=["eager", "threaded"])
def eager(request: pytest.FixtureRequest) -> bool:
    """Both modes of the cache."""
    return bool(request.param == "eager")


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    """Makes scripted runners. At the end of the test each one's cache holds nothing; `palimpsest.testing` replays its
    trace."""
    made: list[Script] = []

    def make(*args: Any, **options: Any) -> Script:
        made.append(Script(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def _mirrors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every host mirror that a test makes is traced, and its trace replayed at the test's end."""
    with traced_mirrors() as traces:
        yield
    if request.node.get_closest_marker("forges") is None:
        for verdict in traces.verdicts():
            assert verdict.ok, str(verdict)
            MIRROR_TAKEN.update(verdict.actions)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many of the mirror's actions the session's traces took; the plug-in says it of the cache's."""
    if MIRROR_TAKEN:
        missing = sorted(MIRROR_ACTIONS.keys() - MIRROR_TAKEN.keys())
        count = f"{len(MIRROR_ACTIONS) - len(missing)} of the specification's {len(MIRROR_ACTIONS)} actions"
        says = f"host mirror: {MIRROR_TAKEN.total():,} events replayed, {count}"
        terminalreporter.write_line(says + (f"; none of {', '.join(missing)}" if missing else ""))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A whole session in which some action never occurred has failed."""
    config = session.config
    selected = bool(config.option.keyword or config.option.markexpr or config.option.collectonly)
    replayed: Any = config.pluginmanager.getplugin("palimpsest-replay")
    untaken = [*replayed.untaken, *(MIRROR_ACTIONS.keys() - MIRROR_TAKEN.keys())]
    if exitstatus == 0 and not selected and config.args == config.getini("testpaths") and untaken:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
