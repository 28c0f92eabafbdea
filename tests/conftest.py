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
def script() -> Iterator[Callable[..., Script]]:
    """Makes scripted runners; at the end of the test each one's cache holds nothing."""
    made: list[Script] = []

    def make(*args: Any, **options: Any) -> Script:
        made.append(Script(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
