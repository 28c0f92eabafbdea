"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.support import Script

torch.set_num_threads(2)


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
