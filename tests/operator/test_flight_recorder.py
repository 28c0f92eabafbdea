"""The flight recorder: its last events are in memory, written out when the cache raises, and can be replayed."""

from __future__ import annotations

import json
import logging
import re

import pytest

from palimpsest import cli
from palimpsest.errors import BadStepError, ConfigRefusedError, StaleReadError, WriteFailedError
from palimpsest.prefix_cache.interface import ModelCachePolicy
from palimpsest.trace import FlightRecorder, MemorySink
from palimpsest.trace.events import as_line
from palimpsest_model_check.replay.machine import load, replay
from palimpsest_model_check.replay.verdict import TraceError
from tests.support import Script, fail_at, hit, more, prefill
from tests.trace.test_replay import busy_run

#: well over twice what a turn of `serve` makes, each of which begins quietly, so that a state is always at hand
EVENTS = 400


def recorded(tmp_path, *, eager=True, events=EVENTS, policy=None, **options) -> Script:
    """A runner whose recorder was set up by the configuration. Its trace is judged by the tests themselves."""
    config = {"flight_recorder_events": events, "flight_recorder_dir": str(tmp_path), **options}
    return Script(policy, eager=eager, untraced=True, **config)


def serve(s: Script, steps: int, begin: int = 0) -> None:
    """Steps with hits now and then, the builder one step behind the engine."""
    pending = None
    for number in range(begin, begin + steps):
        name, ended = f"r{number}", [f"r{number - 2}"] if number > begin + 1 else []
        block = 2 * (number % 4)
        part = hit([block - 2 if block else 6, block], 4, 4) if number % 3 == 2 else prefill([block, block + 1], 8)
        step_id = s.step({name: part}, "k", finished=ended)
        if pending is not None:
            s.cache.materialize(*pending)
        pending = step_id, [name]
    s.cache.materialize(*pending)
    s.settle()


def kept(s: Script) -> FlightRecorder:
    return s.cache.recording.recorder


def verdict_of(path):
    return replay(str(path), *load(path))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "threaded"])
def test_a_part_that_begins_in_the_middle_is_replayed_from_its_state(tmp_path, eager):
    s = recorded(tmp_path, eager=eager)
    parts = 0
    for turn in range(16):
        serve(s, 6, 6 * turn)
        verdict = verdict_of(kept(s).dump(tmp_path / "on demand.ndjson"))
        assert verdict.ok, str(verdict)
        config, events = load(tmp_path / "on demand.ndjson")
        assert len(events) <= 2 * EVENTS
        parts += config["part"]["after"] > 0
    assert parts > 4
    s.close()


def test_a_part_with_steps_that_wait_for_their_builder_is_replayed(tmp_path):
    s = recorded(tmp_path, events=20)
    waiting = s.step({"a": prefill([0], 4)})
    for number in range(1, 9):
        s.cache.discard_step(s.step({"a": more([0, 1, 2, 3], 3 + number)}))
    out = s.cache.materialize(waiting, ["a"])
    path = kept(s).dump(tmp_path / "part.ndjson")
    state = load(path)[0]["part"]["state"]
    assert [step for step, _ in state["steps"]] == [waiting]
    assert verdict_of(path).ok
    assert out.hidden_states["a"].shape[0] == 4
    s.close()


def test_a_change_behind_the_state_is_rejected(tmp_path):
    s = recorded(tmp_path)
    serve(s, 60)
    lines = kept(s).lines()
    s.close()
    head = json.loads(lines[0])
    assert head["part"]["after"] > 0
    for change in ("tenant", "version"):
        forged = json.loads(lines[0])
        state = forged["part"]["state"]
        if change == "tenant":
            state["generations"] += 1
        else:
            state["keys"]["k"]["version"] = [version + 1 for version in state["keys"]["k"]["version"]]
        path = tmp_path / f"{change}.ndjson"
        path.write_bytes(b"".join([as_line(forged), *lines[1:]]))
        assert not verdict_of(path).ok
    without = tmp_path / "gap.ndjson"
    without.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert not verdict_of(without).ok


def test_a_short_run_is_kept_from_its_begin(tmp_path):
    s = recorded(tmp_path, events=10_000)
    serve(s, 5)
    path = kept(s).dump(tmp_path / "all.ndjson")
    s.close()
    config, _ = load(path)
    assert config["part"] == {"after": 0, "state": None}
    assert verdict_of(path).ok


def test_where_the_cache_was_never_quiet_the_part_says_that_it_cannot_be_replayed(tmp_path):
    s = recorded(tmp_path, events=20, policy=ModelCachePolicy(deferred_keys=frozenset({"late"})))
    s.run({"a": prefill([0], 4)}, "late")
    for number in range(4, 14):  # an open deferred task all along
        s.run({"a": more([0, 1, 2, 3], number)}, "late")
    path = kept(s).dump(tmp_path / "part.ndjson")
    s.close()
    with pytest.raises(TraceError, match=r"no quiet step.*read and not replayed.*flight_recorder_events"):
        load(path)
    assert len(path.read_text().splitlines()) == 21


def test_an_error_writes_the_events_before_it_and_says_where(tmp_path, caplog):
    s = recorded(tmp_path, eager=False)
    serve(s, 30)
    fail_at(s.cache._pool, "write", RuntimeError("the disk is on fire"))
    s.step({"x": prefill([0], 4)}, "k")
    with pytest.raises(WriteFailedError):
        s.settle()
    with pytest.raises(WriteFailedError), caplog.at_level(logging.ERROR):
        s.idle()
    (first, *_) = sorted(tmp_path.glob("palimpsest-*.ndjson"))
    assert f"palimpsest replay {first}" in caplog.text
    events = [json.loads(line) for line in first.read_text().splitlines()[1:]]
    assert "record_failure" in {event["action"] for event in events}
    assert cli.main(["replay", "--no-tlc", str(first)]) == 0
    s.cache.shutdown()


def test_few_files_are_written_and_none_for_what_the_caller_did_wrong(tmp_path):
    s = recorded(tmp_path)
    with pytest.raises(BadStepError):
        s.begin({"a": hit([0], 3, 1)})
    assert list(tmp_path.iterdir()) == []
    s.run({"a": prefill([0], 4)})
    fail_at(s.cache._hits, "end_fetch", StaleReadError("planted"))
    for number in range(6):
        with pytest.raises(StaleReadError):
            s.run({f"b{number}": hit([0, 1], 4, 1)}, finished=[f"b{number - 1}" if number else "a"])
        s.settle()
    assert len(list(tmp_path.iterdir())) == 4
    s.cache.shutdown()


def test_a_folder_that_is_not_there_hides_no_error(tmp_path, caplog):
    s = recorded(tmp_path / "nowhere")
    s.run({"a": prefill([0], 4)})
    fail_at(s.cache._hits, "end_fetch", StaleReadError("planted"))
    with pytest.raises(StaleReadError, match="planted"):
        s.run({"b": hit([0, 1], 4, 1)})
    assert re.search("planted; the events before it could not be written: .*nowhere", caplog.text)
    s.cache.shutdown()


def test_the_command_takes_parts_in_process_only(tmp_path, capsys):
    recorder = FlightRecorder(10_000)
    busy_run(recorder, eager=True)
    path = recorder.dump(tmp_path / "busy.ndjson")
    assert cli.main(["replay", str(path)]) == 0
    assert "in process only" in capsys.readouterr().out


def test_a_trace_and_a_recorder_at_once_are_refused():
    with pytest.raises(ConfigRefusedError, match="flight_recorder_events is 5, and a trace is taken already"):
        Script(trace=MemorySink(), flight_recorder_events=5)


def test_a_recorder_of_no_events_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        FlightRecorder(0)
