"""`palimpsest bench`: what it reports is what it measured, and no wrong row goes unnoticed."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch

from palimpsest.bench import docs
from palimpsest.bench.growth import growth, tracing
from palimpsest.bench.measure import Bench, measure
from palimpsest.bench.plot import svg
from palimpsest.bench.results import GrowthPoint, Measured, Repeat, Report, TracingCost
from palimpsest.bench.revisions import merged
from palimpsest.bench.rows import Identities, RowMaker
from palimpsest.bench.timeline import save_cost
from palimpsest.bench.workloads import WORKLOADS, Maker, Sizes, hits, reuse
from palimpsest.cli import main
from palimpsest.prefix_cache import KeyLayout, PrefixCacheManager

ROOT = Path(__file__).parents[2]
QUICK = ["bench", "--quick", "--threads", "1", "--repeats", "1"]
SVG = "{http://www.w3.org/2000/svg}"


def measured(name: str = "a", p50: float = 30.0, floor: float = 10.0, goal: float = 3.0) -> Measured:
    return Measured(name, f"title of {name}", goal, [Repeat(2 * p50, 3 * floor), Repeat(p50, floor)], 7, 0)


def report(*workloads: Measured) -> Report:
    return Report("2026-11-30", "CPU", 2, False, {"torch": "2.13.0"}, list(workloads))


@pytest.fixture
def one_wrong_row(monkeypatch):
    """A cache that changes one value of one delivered row."""
    real = PrefixCacheManager.materialize

    def wrong(self, step_id, req_ids):
        outputs = real(self, step_id, req_ids)
        outputs.hidden_states[req_ids[-1]].view(torch.int16)[-1, -1] ^= 1
        return outputs

    monkeypatch.setattr(PrefixCacheManager, "materialize", wrong)


# ---------------------------------------------------------------------- rows


def test_rows_of_different_identities_differ_in_every_way_that_identities_can():
    maker = RowMaker({key: KeyLayout(torch.bfloat16, (8,)) for key in ("h", "k")})
    who = Identities(np.array([1, 2, 1, 1 + (1 << 15)]), np.array([0, 0, 1, 0]))
    rows = torch.empty(4, 8, dtype=torch.bfloat16)
    maker.write("h", maker.columns("h", who), rows)
    assert maker.wrong("h", maker.columns("h", who), rows) == 0
    for one in range(4):
        same = Identities(np.repeat(who.numbers[one], 4), np.repeat(who.positions[one], 4))
        assert maker.wrong("h", maker.columns("h", same), rows) == 3
    assert maker.wrong("k", maker.columns("k", who), rows) == 4


@pytest.mark.parametrize("column", [0, 3, 7])
def test_a_row_that_differs_in_one_value_is_wrong(column):
    maker = RowMaker({"h": KeyLayout(torch.float32, (8,))})
    columns = maker.columns("h", Identities(np.arange(5), np.arange(5)))
    rows = torch.empty(5, 8)
    maker.write("h", columns, rows)
    rows.view(torch.int32)[2, column] += 1
    assert maker.wrong("h", columns, rows) == 1


def test_missing_rows_and_rows_too_many_are_wrong():
    maker = RowMaker({"h": KeyLayout(torch.float32, (8,))})
    columns = maker.columns("h", Identities(np.arange(5), np.arange(5)))
    assert maker.wrong("h", columns, torch.zeros(3, 8)) == 5
    assert maker.wrong("h", columns, torch.zeros(6, 8)) == 6


# ---------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("letter", list(WORKLOADS))
def test_every_workload_checks_what_cache_and_floor_deliver(letter):
    found = measure(WORKLOADS[letter], quick=True, repeats=2)
    assert [each.workload for each in found] == ([letter, f"{letter} finish"] if letter == "d" else [letter])
    for each in found:
        assert each.rows_wrong == 0 < each.rows_checked
        assert len(each.repeats) == 2
        assert each.ratio == each.p50_us / each.floor_p50_us > 0


@pytest.mark.parametrize("letter", ["a", "c", "e"])
def test_cache_and_floor_move_the_same_rows_in_a_repeat(letter):
    bench = Bench(WORKLOADS[letter], WORKLOADS[letter].quick)
    before = bench.checked.rows, bench.floor_checked.rows
    bench.repeat()
    bench.driver.close()
    assert bench.checked.rows - before[0] == bench.floor_checked.rows - before[1] > 0
    assert bench.floor_checked.wrong == 0
    pool = bench.driver.cache._pool
    slots = torch.arange(bench.sizes.num_blocks * bench.maker.block_size)
    for key, rows in bench.floor.pool.items():
        assert torch.equal(pool.rows(key, slots).view(torch.int16), rows.view(torch.int16))


def test_hits_read_what_another_request_wrote_at_the_same_positions():
    maker = Maker(64)
    maker.fill(32)
    for step in hits(maker, Sizes(2, 16, 3, hit=32, num_blocks=64)):
        who = step.delivered
        assert len(who.numbers) == 2 * (32 + 16) > len(step.computed.numbers)
        assert len(set(who.numbers.tolist())) == 4
        assert who.positions.tolist() == 2 * list(range(48))


def test_reuse_takes_exactly_the_slots_that_are_being_read():
    writers, readers, takers = reuse(Maker(64), Sizes(2, 16, 1, hit=32, num_blocks=64))
    read = torch.cat(readers.hit_slots)
    assert sorted(takers.slots.tolist()) == sorted(read.tolist()) == sorted(writers.slots.tolist())


def test_growth_varies_slots_and_live_requests_and_checks_its_rows():
    points = growth(quick=True, repeats=1)
    for sweep, varied in (("slots", "slots"), ("decoding", "live"), ("waiting", "live")):
        values = [getattr(point, varied) for point in points if point.sweep == sweep]
        assert len(values) > 1
        assert values == sorted(set(values))
    for point in points:
        assert point.rows_wrong == 0
        assert point.us_per_live_request * point.live == pytest.approx(point.p50_us - point.floor_p50_us)


def test_tracing_is_measured_beside_a_second_run_without_it():
    costs = {cost.sink: cost for cost in tracing(quick=True, repeats=1)}
    assert list(costs) == ["off, again", "memory", "file"]
    assert [costs[name].goal_percent for name in ("memory", "file")] == [5, 10]
    for cost in costs.values():
        assert cost.rows_wrong == 0
        assert cost.percent == pytest.approx(100 * (cost.p50_us - cost.off_p50_us) / 6000)


@pytest.mark.parametrize("name", ["decode64", "hits"])
def test_a_step_with_the_cache_is_measured_beside_the_same_step_without(name):
    from palimpsest.bench.device import DEVICE_WORKLOADS, measure_steps

    found, saves = measure_steps(DEVICE_WORKLOADS[name], torch.device("cpu"), quick=True, repeats=1)
    assert saves is None  # a save on the host waits for no device
    assert found.rows_wrong == 0 < found.rows_checked
    assert found.goal >= DEVICE_WORKLOADS[name].goal


def test_a_wrong_row_in_the_threaded_loop_is_counted(one_wrong_row):
    from palimpsest.bench.device import DEVICE_WORKLOADS, measure_steps

    assert measure_steps(DEVICE_WORKLOADS["decode64"], torch.device("cpu"), quick=True, repeats=1)[0].rows_wrong > 0


def on_device(name: str, ts: float, dur: float, nbytes: int = 0) -> dict[str, object]:
    category = "gpu_memcpy" if nbytes else "user_annotation"
    return {"cat": category, "name": name, "ts": ts, "dur": dur, "args": {"bytes": nbytes} if nbytes else {}}


def test_a_save_is_charged_for_what_it_takes_after_the_last_landing_that_it_saw():
    out = "Memcpy DtoH (Device -> Pinned)"
    timeline = [
        on_device("save_outputs", 0, 30),  # nothing had to land: all of it is its own
        on_device(out, 20, 100, 6400),  # lands at 120, in the second save
        on_device("save_outputs", 60, 90),  # ends at 150
        on_device("save_outputs", 200, 70),  # what landed before it began does not count
        on_device(out, 260, 100, 6400),  # lands after the third
        on_device(out, 400, 1, 8),  # small: says nothing of a rate
        on_device("pinned copies, alone", 500, 100),
        on_device(out, 510, 90, 6400),
        on_device(out, 600, 80, 6400),
        {"ph": "M", "name": "process_name"},
    ]
    cost = save_cost("decode64", timeline)
    assert (cost.saves, cost.own_p50_us, cost.own_max_us) == (3, 30, 70)
    assert cost.landed_bytes_per_s == 64e6
    assert cost.pinned_bytes_per_s == 80e6
    assert cost.of_pinned_rate == 0.8


def test_a_timeline_without_saves_is_an_error():
    with pytest.raises(ValueError, match="0 saves"):
        save_cost("a", [on_device("pinned copies, alone", 500, 100)])


# ---------------------------------------------------------------------- the command


def test_the_command_shows_ratio_and_goal_and_exits_with_0_whatever_the_speed(capsys, monkeypatch):
    monkeypatch.setattr(Measured, "met", property(lambda self: False))
    assert main([*QUICK, "a"]) == 0
    shown = capsys.readouterr().out
    assert "x floor" in shown
    assert "goal" in shown
    assert "no" in shown


def test_one_wrong_row_makes_the_command_exit_with_1(one_wrong_row, capsys, tmp_path):
    assert main([*QUICK, "a", "--json", str(tmp_path / "run.json")]) == 1
    assert "WRONG" in capsys.readouterr().out
    assert Report.load(tmp_path / "run.json").rows_wrong > 0


def test_the_saved_run_has_the_figures_and_nothing_of_the_machine(tmp_path):
    file = tmp_path / "run.json"
    assert main([*QUICK, "d", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert set(found) == {
        "schema", "date", "device", "threads", "quick", "versions", "workloads", "growth", "tracing",
        "saves",
    }  # fmt: skip
    assert set(found["versions"]) == {"palimpsest", "torch", "Python"}
    assert found["quick"] is True
    for line in found["workloads"]:
        assert line["ratio"] == line["p50_us"] / line["floor_p50_us"]
        assert line["p50_us"] == min(repeat["p50_us"] for repeat in line["repeats"])
        assert {"workload", "title", "goal", "met", "rows_checked", "rows_wrong"} <= set(line)
    assert str(tmp_path) not in file.read_text()


def test_a_saved_run_is_read_back_as_it_was(tmp_path):
    run = report(measured("a"), measured("b", goal=1.1))
    run.growth = [GrowthPoint("slots", 1000, 64, 64, 300.0, 100.0, 0)]
    run.tracing = [TracingCost("file", 10.0, 6000.0, 310.0, 300.0, 0)]
    run.save(tmp_path / "run.json")
    assert Report.load(tmp_path / "run.json") == run


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", '{"schema": 99}'])
def test_a_file_that_is_no_run_is_refused_by_name(text, tmp_path, capsys):
    file = tmp_path / "odd.json"
    file.write_text(text)
    assert main(["bench", "--compare", str(file), str(file)]) == 2
    assert "odd.json" in capsys.readouterr().err


def test_an_unknown_workload_is_refused_before_anything_runs(capsys):
    assert main([*QUICK, "z"]) == 2
    assert "'z'" in capsys.readouterr().err


def test_comparing_shows_both_ratios_and_the_change(tmp_path, capsys):
    report(measured("a", p50=30)).save(tmp_path / "before.json")
    report(measured("a", p50=15)).save(tmp_path / "after.json")
    assert main(["bench", "--compare", str(tmp_path / "before.json"), str(tmp_path / "after.json")]) == 0
    shown = capsys.readouterr().out
    for text in ("before", "after", "3.00", "1.50", "-50 %"):
        assert text in shown


def test_the_runs_of_a_commit_are_merged_repeat_by_repeat():
    both = merged([report(measured(p50=30)), report(measured(p50=20))])
    (only,) = both.workloads
    assert len(only.repeats) == 4
    assert only.p50_us == 20
    assert only.rows_checked == 14


@pytest.mark.slow
def test_another_commit_is_measured_by_this_benchmark_and_leaves_no_worktree(capsys):
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    before = subprocess.run([*git, "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert main([*QUICK, "a", "--against", "HEAD"]) == 0
    assert "this tree" in capsys.readouterr().out
    assert main([*QUICK, "a", "--against", "no-such-commit"]) == 2
    assert "no-such-commit" in capsys.readouterr().err
    assert subprocess.run([*git, "worktree", "list"], capture_output=True, text=True, check=True).stdout == before


# ---------------------------------------------------------------------- plot and docs


def test_the_plot_has_a_bar_as_long_as_each_ratio_and_a_mark_at_each_goal():
    found = [measured("a", p50=30, goal=3.0), measured("b <&>", p50=60, goal=1.5)]
    root = ElementTree.fromstring(svg("title", found))
    bars = [float(each.get("width")) for each in root.iter(f"{SVG}rect") if each.get("class") == "bar"]
    lefts = [float(each.get("x")) for each in root.iter(f"{SVG}rect") if each.get("class") == "bar"]
    goals = [float(each.get("x1")) for each in root.iter(f"{SVG}line") if each.get("class") == "goal"]
    assert bars[1] / bars[0] == pytest.approx(2, rel=0.01)
    assert goals[0] - lefts[0] == pytest.approx(bars[0], abs=0.2)
    assert goals[1] - lefts[1] == pytest.approx(bars[1] / 4, abs=0.2)


def test_the_docs_get_the_tables_between_the_markers_and_keep_the_rest(tmp_path):
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n")
    (tmp_path / docs.RUNS).mkdir()
    report(measured("a")).save(tmp_path / docs.RUNS / "cpu.json")
    assert main(["bench", "--docs", str(document)]) == 0
    once = document.read_text()
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert "| a: title of a | 30 | 10 | 3.00 |" in once
    ElementTree.fromstring((tmp_path / docs.RUNS / "cpu.svg").read_text())
    assert main(["bench", "--docs", str(document)]) == 0
    assert document.read_text() == once


@pytest.mark.parametrize(("text", "missing"), [("no markers", "between"), (f"{docs.BEGIN}{docs.END}", "no run")])
def test_docs_without_markers_or_runs_are_left_as_they_are(text, missing, tmp_path, capsys):
    document = tmp_path / "performance.md"
    document.write_text(text)
    assert main(["bench", "--docs", str(document)]) == 2
    assert missing in capsys.readouterr().err
    assert document.read_text() == text


def test_the_docs_of_this_project_are_those_of_its_saved_runs(tmp_path):
    (tmp_path / docs.RUNS).mkdir()
    for file in (ROOT / "docs" / docs.RUNS).iterdir():
        (tmp_path / docs.RUNS / file.name).write_bytes(file.read_bytes())
    (tmp_path / "performance.md").write_bytes((ROOT / "docs/performance.md").read_bytes())
    for file in docs.update(tmp_path / "performance.md"):
        assert file.read_bytes() == (ROOT / "docs" / file.relative_to(tmp_path)).read_bytes()
