"""The reference runner as a whole: every row is right, and both oracles can tell when one is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palimpsest import cli
from palimpsest.prefix_cache.interface import HIDDEN_KEY
from palimpsest.prefix_cache.merge import StepOutputs
from palimpsest.runners.reference import ReferenceRunner, Report, Request, RunnerSettings, oracle
from palimpsest.runners.reference.identity import IDENTITY_COLUMNS
from palimpsest.runners.reference.outputs import AUDIO_KEY, TEXT_KEY
from palimpsest.runners.reference.plan import Share
from palimpsest.runners.reference.workload import builtin_workload, with_departures, with_parallel_samples
from palimpsest_model_check.replay import machine

KEYS = (HIDDEN_KEY, TEXT_KEY, AUDIO_KEY)
SMALL = RunnerSettings(num_blocks=56, max_tokens=96, gpu_staging_bytes=1 << 15)

Rows = dict[str, dict[str, torch.Tensor]]
Plant = Callable[[Share, Rows], bool]


def small_workload(count: int = 60) -> list[Request]:
    return with_departures(with_parallel_samples(builtin_workload(count, 1), 5), 7)


def delivered(outputs: StepOutputs) -> Rows:
    return {HIDDEN_KEY: outputs.hidden_states or {}, **outputs.mm_outputs}


def run_with(plant: Plant) -> Report:
    """A run in which `plant` may damage what the cache delivers, once: it tells when it has."""
    runner = ReferenceRunner(small_workload(), SMALL)
    take, done = runner.oracle.take, [False]

    def damaged(share: Share, outputs: StepOutputs) -> None:
        done[0] = done[0] or plant(share, delivered(outputs))
        take(share, outputs)

    runner.oracle.take = damaged  # type: ignore[method-assign]  # the delivery as the oracle gets it
    report = runner.run()
    assert done[0], "the schedule gave no occasion to plant the row"
    return report


def test_a_small_pool_under_pressure_serves_every_row_right() -> None:
    runner = ReferenceRunner(small_workload(), SMALL)
    report = runner.run()
    assert report.right
    assert report.verdict.rows_checked > 10_000
    assert (report.verdict.rows_wrong, report.verdict.faults) == (0, [])
    assert report.verdict.max_error < 1e-4
    counts = report.scheduler
    assert counts.finished == counts.requests
    for count in (counts.preemptions, counts.same_step_hits, counts.multi_block_hits, counts.aborted):
        assert count > 0
    for count in (report.cache.rows_preserved, report.cache.hits_replanned, report.cache.flushes):
        assert count > 0
    assert report.cache.hits == counts.hits
    assert report.cache.tokens == counts.tokens


def test_two_runs_schedule_and_check_the_same() -> None:
    first, second = (ReferenceRunner(small_workload(30), SMALL).run() for _ in range(2))
    assert first.scheduler == second.scheduler
    assert first.verdict == second.verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    settings = RunnerSettings(num_blocks=56, max_tokens=96, dtype=dtype)
    assert ReferenceRunner(small_workload(20), settings).run().right


# ---------------------------------------------------------------- both oracles can fail


def values_of(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(rows.shape[0], -1)[:, :-IDENTITY_COLUMNS]


def tags_of(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(rows.shape[0], -1)[:, -IDENTITY_COLUMNS:]


def whole(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(rows.shape[0], -1)


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": whole,
    "values": values_of,
    "identity": tags_of,
}
#: which oracle sees what: (identity, recomputation)
SEEN = {"whole": (1, 1), "values": (0, 1), "identity": (1, 0)}


def wrong_tenant(key: str, part: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Another request's row of the same step in place of the last row of a hit."""

    def plant(share: Share, rows: Rows) -> bool:
        others = [name for name in rows[key] if name != share.req_id]
        if not share.hit or not others:
            return False
        mine, theirs = rows[key][share.req_id], rows[key][others[0]]
        if torch.allclose(values_of(mine)[share.hit - 1], values_of(theirs)[-1], atol=1e-2):
            return False
        part(mine)[share.hit - 1] = part(theirs)[-1]
        return True

    return plant


def stale(key: str, part: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """The row that a hit's slot held before its present tenant, which was once delivered from there."""
    held: dict[int, list[torch.Tensor]] = {}

    def plant(share: Share, rows: Rows) -> bool:
        mine = rows[key][share.req_id]
        for place, slot in enumerate(share.slots[: share.hit].tolist()):
            for earlier in held.get(slot, [])[:-1]:
                if not torch.allclose(values_of(mine)[place], values_of(earlier[None])[0], atol=1e-2):
                    part(mine)[place] = part(earlier[None])[0]
                    return True
        first = 0 if share.new else share.start
        for position in range(share.start, share.stop):
            held.setdefault(int(share.slots[position]), []).append(mine[position - first].clone())
        return False

    return plant


@pytest.mark.parametrize("part", list(PARTS))
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("fault", [wrong_tenant, stale])
def test_a_planted_row_is_caught(fault: Callable[..., Plant], key: str, part: str) -> None:
    report = run_with(fault(key, PARTS[part]))
    verdict = report.verdict
    assert (verdict.identity_wrong, verdict.values_wrong) == SEEN[part]
    assert verdict.rows_wrong == 1
    assert not report.right
    assert len(verdict.faults) == sum(SEEN[part])


def test_a_row_that_is_not_delivered_is_wrong() -> None:
    def plant(share: Share, rows: Rows) -> bool:
        if not share.hit:
            return False
        rows[TEXT_KEY][share.req_id] = rows[TEXT_KEY][share.req_id][share.hit :]
        missing.append(share.stop)
        return True

    missing: list[int] = []
    verdict = run_with(plant).verdict
    assert verdict.rows_missing == verdict.rows_wrong == missing[0]


def test_a_row_of_nan_is_wrong() -> None:
    def plant(share: Share, rows: Rows) -> bool:
        values_of(rows[HIDDEN_KEY][share.req_id])[0] = np.nan
        return True

    assert run_with(plant).verdict.values_wrong == 1


def test_pool_rows_that_are_scribbled_over_are_caught() -> None:
    """The fault is in the cache itself this time: every hit reads rows that nobody wrote."""
    runner = ReferenceRunner(small_workload(20), SMALL)
    read_into = runner.cache._pool.read_into

    def scribbled(key: str, slots: Any, out: torch.Tensor) -> None:
        read_into(key, slots, out)
        out.fill_(99.0)

    runner.cache._pool.read_into = scribbled  # type: ignore[method-assign]  # a pool that gives wrong rows
    verdict = runner.run().verdict
    assert verdict.identity_wrong > 0
    assert verdict.values_wrong > 0


def test_an_error_of_the_builder_ends_the_run() -> None:
    runner = ReferenceRunner(small_workload(20), SMALL)

    def broken(share: Share, outputs: StepOutputs) -> None:
        raise LookupError("planted")

    runner.oracle.take = broken  # type: ignore[method-assign]  # an error on the builder's thread
    with pytest.raises(RuntimeError, match="builder failed") as caught:
        runner.run()
    assert isinstance(caught.value.__cause__, LookupError)


# ---------------------------------------------------------------- the command


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `palimpsest demo`; gives its exit status and what it printed."""

    def run(*options: str) -> tuple[int, str, str]:
        status = cli.main(["demo", *options])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.mark.slow
def test_the_command_shows_a_table_and_both_verdicts_on_its_own_trace(
    demo: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "events.ndjson"
    status, out, _ = demo("--requests", "40", "--blocks", "60", "--trace-out", str(path))
    assert status == 0
    for name in (
        "requests",
        "tokens",
        "hits",
        "multi-block hits",
        "same-step hits",
        "rows checked",
        "rows wrong",
    ):
        assert name in out
    for name in ("rows preserved", "hits re-planned", "waits", "preemptions", "events"):
        assert name in out
    events = len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert f"{events:,}" in out
    assert "1 of 1 traces accepted in process" in out
    assert "4 of 4 parts accepted by TLC" in out
    verdict = machine.replay("the demo's", *machine.load(path))
    assert (verdict.ok, verdict.accepted) == (True, events)


def test_the_command_without_a_java_says_what_to_do(
    demo: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_JAVA", "no-such-java")
    status, _, err = demo("--requests", "4")
    assert status == 2
    assert "PALIMPSEST_JAVA is no-such-java" in err


def test_replay_tells_a_changed_event_by_its_number_and_shows_the_state(
    demo: Callable[..., tuple[int, str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.ndjson"
    assert demo("--requests", "4", "--no-tlc", "--trace-out", str(path))[0] == 0
    assert cli.main(["replay", "--no-tlc", str(path)]) == 0
    assert "1 of 1 traces accepted in process" in capsys.readouterr().out
    lines = path.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if '"complete"' in line)
    path.write_text("\n".join([*lines[:at], lines[at].replace('"failed":[]', '"failed":[1]'), *lines[at + 1 :], ""]))
    assert cli.main(["replay", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"event {at} (complete) rejected" in out
    assert "the specification's state before it" in out
    path.write_text(lines[0])
    assert cli.main(["replay", str(path)]) == 2
    assert "truncated" in capsys.readouterr().err


def test_the_command_fails_when_a_row_is_wrong(
    demo: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "TOLERANCE", -1.0)  # no row is close enough
    status, out, _ = demo("--requests", "4", "--no-tlc")
    assert status == 1
    assert "ROWS ARE WRONG" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}\n", "line 1: input_length must be"), ("", "has no requests"), (None, "No such file")],
)
def test_the_command_refuses_a_bad_trace(
    demo: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    status, _, err = demo("--trace", str(path))
    assert status == 2
    assert message in err


def test_the_command_refuses_a_pool_that_is_too_small(demo: Callable[..., tuple[int, str, str]]) -> None:
    status, _, err = demo("--blocks", "2")
    assert status == 2
    assert "and there are 2" in err
