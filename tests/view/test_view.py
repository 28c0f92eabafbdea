"""What a picture says of a trace, a counterexample and a schedule, and the files made of it."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest

from palimpsest.cli import main
from palimpsest_model_check.replay.machine import load
from palimpsest_model_check.view.named import variables_of
from palimpsest_model_check.view.of_counterexample import Saved
from palimpsest_model_check.view.open import open_picture
from palimpsest_model_check.view.picture import Picture
from palimpsest_model_check.view.strips import Piece, Strips, ranges
from tests.slip import SCENARIO
from tests.view.conftest import MODEL


@pytest.fixture(scope="module")
def trace(files) -> Picture:
    return open_picture(files / "accepted.ndjson")


@pytest.fixture(scope="module")
def counterexample(files) -> Picture:
    return open_picture(files / f"{MODEL}.json")


def strip(picture: Picture, group: str, *names: str):
    return next(each for each in picture.strips if each.group == group and all(name in each.name for name in names))


def test_each_event_of_a_trace_is_a_moment_on_the_lane_of_its_thread(trace, files):
    _, events = load(files / "accepted.ndjson")
    assert [moment.action for moment in trace.moments] == [event.action for event in events]
    assert {"engine", "builder", "prefetch", "committer", "device"} <= set(trace.lanes)
    lanes = {(moment.lane, moment.action) for moment in trace.moments}
    assert ("engine", "publish") in lanes
    assert ("committer", "complete") in lanes
    assert trace.failure is None


def test_a_slot_goes_from_claim_to_commit_with_tenant_and_version(trace):
    states = [(piece.state, piece.label) for piece in strip(trace, "slot", "slots 0-").pieces]
    assert states.index(("COMMITTED", "a0.1 v1 COMMITTED")) == states.index(("IN_TRANSIT", "a0.1 v1 IN_TRANSIT")) + 1


def test_a_task_goes_the_way_of_its_life_cycle(trace):
    pieces = [piece for each in trace.strips if each.group == "task" for piece in each.pieces]
    first = [piece.state for piece in pieces if piece.label.startswith("task 1 ")]
    assert first == ["QUEUED", "COPYING", "HOST_READY", "WRITTEN"]


def test_pieces_of_a_strip_follow_one_another_and_change_at_moments_that_touch_it(trace, counterexample):
    for picture in (trace, counterexample):
        for place, each in enumerate(picture.strips):
            for before, after in zip(each.pieces, each.pieces[1:], strict=False):
                assert before.stop <= after.start
            assert all(place in picture.touches[piece.start] for piece in each.pieces)


def test_a_fetch_touches_the_rows_that_it_reads(trace):
    at = next(at for at, moment in enumerate(trace.moments) if moment.action == "end_fetch")
    touched = {trace.strips[row].group for row in trace.touches[at]}
    assert {"read", "slot"} <= touched


def test_a_rejected_trace_fails_at_the_event_with_the_property_in_words_and_the_values(files):
    picture = open_picture(files / "rejected.ndjson")
    assert picture.failure is not None
    assert picture.moments[picture.failure.at].action == "complete"
    assert "999" in picture.failure.what
    ((name, words),) = picture.failure.properties
    assert name == "RecordBeforeWake"
    assert words.startswith("Whoever is woken")
    assert "999" in dict(picture.failure.values)["what it left"]
    assert max(piece.stop for each in picture.strips for piece in each.pieces) == picture.failure.at + 1, (
        "of what comes after it nothing is known"
    )
    assert len(picture.touches) == len(picture.moments) == len(open_picture(files / "accepted.ndjson").moments)


def test_a_counterexample_fails_at_its_last_step_with_what_the_property_speaks_of(counterexample):
    failure = counterexample.failure
    assert failure.at == len(counterexample.moments) - 1
    assert failure.properties[0][0] == "PageExclusive"
    named = {name.split("[")[0].split(".")[0] for name, _ in failure.values}
    assert "holders" in named
    assert named <= set(variables_of("PageExclusive"))
    assert {each.group for each in counterexample.strips} >= {"slot", "page", "task", "variable"}
    assert {"engine", "committer"} <= set(counterexample.lanes)


def test_a_schedule_is_run_again_and_fails_where_the_slip_is(schedule):
    text = schedule.read_text()
    assert "✗ fails" in text
    assert "RecordBeforeWake" in text


def test_a_schedule_of_mended_code_says_that_nothing_is_found_any_more(schedule, files):
    picture = open_picture(files / f"{SCENARIO}.json")
    assert picture.failure is None
    assert "this one finds nothing" in picture.about
    assert "RecordBeforeWake" in picture.about


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", '{"violated": "X"}', '{"schema": 1}\n', '{"turns": 3}'])
def test_a_file_that_nothing_can_be_drawn_from_is_refused_by_name(tmp_path, capsys, text):
    file = tmp_path / "wrong.file"
    file.write_text(text)
    assert main(["view", str(file)]) == 2
    assert "wrong.file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_without_bokeh_there_is_no_page_and_the_extra_is_named(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    out = tmp_path / "page.html"
    assert main(["view", str(files / "accepted.ndjson"), "-o", str(out)]) == 2
    assert "palimpsest-cache[view]" in capsys.readouterr().err
    assert not out.exists()
    assert main(["view", str(files / "accepted.ndjson"), "--perfetto", str(tmp_path / "trace.json")]) == 0


def test_a_page_needs_no_network_and_its_data_cannot_end_its_script(trace, files, capsys):
    out = files / "accepted.html"
    assert main(["view", str(files / "accepted.ndjson"), "-o", str(out)]) == 0
    assert "nothing fails" in capsys.readouterr().out
    page = out.read_text()
    assert """Content-Security-Policy" content="default-src 'none';""" in page
    assert "<link" not in page
    assert page.count("</script>") == page.count("<script")


def test_the_chrome_trace_has_each_moment_and_each_piece_on_a_named_thread(trace, counterexample, files):
    for name, picture in (("accepted.ndjson", trace), (f"{MODEL}.json", counterexample)):
        out = files / "chrome.json"
        assert main(["view", str(files / name), "--perfetto", str(out)]) == 0
        events = json.loads(out.read_text())["traceEvents"]
        kinds = Counter((event["ph"], event["pid"]) for event in events)
        assert kinds["X", 1] == len(picture.moments)
        assert kinds["X", 2] == sum(len(each.pieces) for each in picture.strips)
        assert kinds["b", 1] == kinds["e", 1] == len(picture.spans)
        named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
        assert all((event["pid"], event["tid"]) in named for event in events if event["ph"] == "X")
        assert all(event["dur"] > 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
        instants = [event["name"] for event in events if event["ph"] == "i"]
        assert instants == ([] if picture.failure is None else ["FAILS: PageExclusive"])


def test_the_itf_of_a_counterexample_has_the_specifications_variables_in_every_state(files):
    saved, out = Saved.load(files / f"{MODEL}.json"), files / "itf.json"
    assert main(["view", str(files / f"{MODEL}.json"), "--itf", str(out)]) == 0
    itf = json.loads(out.read_text())
    assert itf["#meta"]["format"] == "ITF"
    assert len(itf["states"]) == len(saved.steps)
    assert {"tenant", "status", "holders", "tasks"} <= set(itf["vars"])
    for at, state in enumerate(itf["states"]):
        assert state["#meta"]["index"] == at
        assert set(state) == {"#meta", *itf["vars"]}
    assert itf["states"][0]["closed"] is False
    assert itf["states"][0]["completed"] == {"#tup": []}
    assert set(itf["states"][0]["known"]) == {"#set"}
    assert "loop" not in itf


def test_the_itf_of_a_behavior_that_never_ends_says_where_it_goes_on(files, tmp_path):
    data = json.loads((files / f"{MODEL}.json").read_text())
    looped = tmp_path / "looped.json"
    looped.write_text(json.dumps({**data, "back_to": data["steps"][2]["step"]}))
    assert main(["view", str(looped), "--itf", str(tmp_path / "itf.json")]) == 0
    assert json.loads((tmp_path / "itf.json").read_text())["loop"] == 2


def test_the_itf_of_a_trace_has_what_each_thing_was_after_each_event(files, trace):
    out = files / "itf.json"
    assert main(["view", str(files / "accepted.ndjson"), "--itf", str(out)]) == 0
    itf = json.loads(out.read_text())
    assert [state["action"] for state in itf["states"]] == [moment.action for moment in trace.moments]
    at = next(at for at, moment in enumerate(trace.moments) if moment.action == "publish")
    slots = dict(itf["states"][at]["slots"]["#map"])
    assert any(label.endswith("IN_TRANSIT") for label in slots.values())
    assert not itf["states"][at - 1]["slots"]["#map"]


def test_things_that_went_through_the_same_share_a_strip_and_short_lives_a_row():
    strips = Strips()
    for slot in (0, 1, 2, 5):
        strips.put(("slot", (slot, "h")), 0, "ABSENT", "x")
        if slot == 5:
            strips.put(("slot", (slot, "h")), 1, "COMMITTED", "y")
    for task in range(20):
        strips.put(("task", task), task * 2, "QUEUED", f"task {task}")
        strips.end(("task", task), task * 2 + 1)
    rows, touches = strips.finish(50)
    assert [row.name for row in rows] == ["slots 0-2 h", "slot 5 h", "tasks"]
    assert rows[1].pieces == (Piece(0, 1, "ABSENT", "x"), Piece(1, 50, "COMMITTED", "y"))
    assert len(rows[2].pieces) == 20
    assert touches[0] == (0, 1, 2)
    assert touches[1] == (1, 2)


def test_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
