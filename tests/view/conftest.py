"""Files of each kind that `palimpsest view` draws, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest.cli import main
from palimpsest.prefix_cache.controller import PrefixCacheController as Controller
from palimpsest.trace import NdjsonSink
from tests.slip import SCENARIO, woken_before_the_record
from tests.support import tag_of
from tests.trace.test_replay import busy_run
from tests.view.browser import MISSING, Browser, chromium, is_there

MODEL = "mutant-page-left-early"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an accepted trace, a rejected one, a counterexample and a schedule."""
    folder = tmp_path_factory.mktemp("view")
    sink = NdjsonSink(folder / "accepted.ndjson", tag_of)
    busy_run(sink, eager=False)
    sink.close()
    lines = (folder / "accepted.ndjson").read_text().splitlines(keepends=True)
    late = [at for at, line in enumerate(lines) if '"action":"complete"' in line][5]
    wrong = lines[late].replace('"completed":[', '"completed":[999,')
    (folder / "rejected.ndjson").write_text("".join([*lines[:late], wrong, *lines[late + 1 :]]))
    assert main(["check", MODEL, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def schedule(files: Path) -> Path:
    """A schedule that finds a slip in the code; while the fixture lives, the slip is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Controller, "_write_pool", woken_before_the_record)
        assert main(["explore", SCENARIO, "--out", str(files)]) == 1
        assert main(["view", str(files / f"{SCENARIO}.json"), "-o", str(files / "schedule.html")]) == 0
    return files / "schedule.html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; they are skipped, and say so, where there is none."""
    if not is_there():
        pytest.skip(f"NO PAGE WAS LOOKED AT: {MISSING}")
    with chromium() as found:
        yield found
