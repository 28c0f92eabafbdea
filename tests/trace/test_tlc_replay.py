"""Replay in TLC: the code's traces are behaviors of the specification itself, and wrong ones are not."""

from __future__ import annotations

import copy
import hashlib
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.prefix_cache.interface import ModelCachePolicy
from palimpsest.trace import Event, MemorySink
from palimpsest_model_check.jvm import find_jar
from palimpsest_model_check.replay.machine import replay
from palimpsest_model_check.tlc_replay import replay_in_tlc, windows
from palimpsest_model_check.tlc_replay.literals import literal
from palimpsest_model_check.tlc_replay.run import CLASSES, TlcVerdict
from palimpsest_model_check.tlc_replay.selection import busiest_pairs
from palimpsest_model_check.tlc_replay.translate import TlcTrace, translate
from tests.support import more, prefill, tag_of
from tests.trace.test_replay import busy_run

CLASS = CLASSES / "tlc2" / "overrides" / "TLCOverrides.class"


def recorded(*, eager: bool) -> tuple[dict[str, Any], list[Event]]:
    sink = MemorySink(tag_of)
    busy_run(sink, eager=eager)
    assert replay("busy", sink.config, sink.events).ok
    return sink.config, sink.events


@pytest.fixture(scope="module")
def threaded() -> tuple[dict[str, Any], list[Event]]:
    return recorded(eager=False)


def whole(name: str, config: dict[str, Any], events: list[Event]) -> TlcTrace:
    return translate(name, config, events, None)


def at(trace: TlcTrace, action: str, which: int = -1) -> int:
    """The place of one of the trace's events of an action."""
    return [place for place, event in enumerate(trace.events) if event["action"] == action][which]


def with_events(trace: TlcTrace, name: str, events: list[dict[str, Any]]) -> TlcTrace:
    return replace(trace, name=name, events=events)


def changed(trace: TlcTrace, name: str, place: int, **fields: Any) -> TlcTrace:
    events = copy.deepcopy(trace.events)
    events[place] |= fields
    return with_events(trace, name, events)


@pytest.mark.slow
def test_a_whole_run_is_accepted_eager_and_threaded_and_so_are_its_projections(threaded):
    config, events = threaded
    traces = [whole("threaded", config, events), whole("eager", *recorded(eager=True))]
    traces += [translate(f"blocks {pair}", config, events, pair) for pair in busiest_pairs(events, 2)]
    verdicts = replay_in_tlc(traces)
    assert all(verdict.ok for verdict in verdicts), "\n".join(map(str, verdicts))
    assert [verdict.events for verdict in verdicts] == [len(trace.events) for trace in traces]
    assert verdicts[0].events > 400
    assert all(100 < verdict.events < 500 for verdict in verdicts[2:])


def test_a_projection_that_leaves_a_flush_out_goes_on_where_the_flush_ended_an_open_task(script):
    s = script(ModelCachePolicy(deferred_keys=frozenset({"d"})), gpu_staging_bytes=4 * 16)
    s.run({"a": prefill([0], 4)}, "d")
    s.run({"b": prefill([1], 4)}, "d")  # a's task is flushed, written and drained
    s.run({"a": more([0, 2], 4, 4)}, "d")
    s.close()
    s.trace.close()
    assert any(event.action == "seal_oldest" for event in s.trace.events)
    (verdict,) = replay_in_tlc([translate("blocks 0 and 2", s.trace.config, s.trace.events, (0, 2))])
    assert verdict.ok, str(verdict)


@pytest.mark.slow
def test_what_is_wrong_is_rejected_at_its_event_and_says_what_differs(threaded):
    trace = whole("right", *threaded)
    events = trace.events
    publish, complete, end = at(trace, "publish", 5), at(trace, "complete", 7), at(trace, "end_fetch")
    taken, wake, hit = at(trace, "take_step", 3), at(trace, "wake", 5), at(trace, "begin_fetch")
    claimed = copy.deepcopy(events[publish]["claimed"])
    claimed["keys"][0]["versions"][0] += 1
    swapped = [*events[:complete], events[complete + 1], events[complete], *events[complete + 2 :]]
    assert events[complete + 1]["action"] == "wake"
    wrong = {
        "a version": (changed(trace, "a version", publish, claimed=claimed), publish, {"slots"}),
        "a record": (changed(trace, "a record", complete, completed=[]), complete, {"records"}),
        "a preserved row": (changed(trace, "a preserved row", end, preserved=[1]), end, {"preserved"}),
        "a step": (changed(trace, "a step", taken, steps=[999]), taken, {"steps"}),
        "another read": (changed(trace, "another read", hit, hit=[1, "r0", "k"]), hit, {"read"}),
        "doubled": (with_events(trace, "doubled", [*events[:wake], events[wake], *events[wake:]]), wake + 1, {"guard"}),
        "dropped": (with_events(trace, "dropped", [*events[:wake], *events[wake + 1 :]]), None, {"guard"}),
        "swapped": (with_events(trace, "swapped", swapped), complete, {"guard"}),
    }
    verdicts = {verdict.trace: verdict for verdict in replay_in_tlc([each for each, _, _ in wrong.values()])}
    for name, (_, place, why) in wrong.items():
        verdict = verdicts[name]
        assert not verdict.ok, name
        assert place is None or verdict.events == place, f"{verdict}"
        assert why <= set(verdict.why), f"{verdict}"
        assert "eng" in verdict.variables()
    assert "rejected by TLC: what it left differs in slots" in str(verdicts["a version"])


@pytest.mark.slow
@pytest.mark.parametrize("found", ["nothing", "not a class"])
def test_traces_are_written_as_literals_where_the_class_cannot_be_loaded(threaded, tmp_path, found):
    if found == "not a class":
        broken = tmp_path / CLASS.relative_to(CLASSES)
        broken.parent.mkdir(parents=True)
        broken.write_bytes(b"nonsense")
    config, events = threaded
    trace = translate("short", config, events, busiest_pairs(events, 1)[0])
    short = replace(trace, events=trace.events[:60])
    assert replay_in_tlc([short], class_path=(tmp_path,)) == [
        TlcVerdict("short", 60, f"the first of {trace.touching:,} that touch them, of {len(events):,}")
    ]


def test_a_small_trace_is_taken_whole_and_a_large_one_by_pairs_of_blocks(threaded):
    config, events = threaded
    assert [(part.whole, part.name) for part in windows("t", config, events)] == [(True, "t")]
    parts = windows("t", config, events * 2)
    assert len(parts) == 4
    assert all(not part.whole and part.num_blocks == 2 for part in parts)
    chosen = [part.name.removeprefix("t, blocks ").split(" and ") for part in parts]
    assert len({block for pair in chosen for block in pair}) == 8


def test_a_literal_is_the_value_that_the_json_says():
    said = {"a": [1, -2, 'x"y\\z'], "b": True, "c": []}
    assert literal(said) == '[a |-> <<1, -2, "x\\"y\\\\z">>, b |-> TRUE, c |-> <<>>]'
    with pytest.raises(TypeError, match="None"):
        literal(None)


def hashes() -> dict[str, str]:
    lines = (CLASSES / "hashes.txt").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def test_the_class_and_its_source_are_those_whose_hashes_are_kept():
    for path in (CLASS, CLASSES / "TLCOverrides.java"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert hashes()[str(path.relative_to(CLASSES))] == digest, f"{path.name} has changed: build it, keep its hash"


@pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler here")
def test_the_class_is_what_its_source_compiles_to(tmp_path):
    source = shutil.copy(CLASSES / "TLCOverrides.java", tmp_path)
    options = ["--release", "11", "-Xlint:-options", "-cp", str(find_jar()), "-d", str(tmp_path)]
    subprocess.run(["javac", *options, source], check=True, capture_output=True, timeout=100)
    built = (tmp_path / CLASS.relative_to(CLASSES)).read_bytes()
    assert methods(built) == methods(CLASS.read_bytes())


def methods(compiled: bytes) -> set[bytes]:
    """The names in a class's pool of constants; compilers of different years order them differently."""
    names, place = set(), 10
    while compiled[place] == 1 or compiled[place] in SIZES:
        if compiled[place] == 1:
            length = int.from_bytes(compiled[place + 1 : place + 3], "big")
            names.add(compiled[place + 3 : place + 3 + length])
            place += 3 + length
        else:
            place += SIZES[compiled[place]]
    return names


#: the sizes of a class file's constants by their tags (Java Virtual Machine Specification, table 4.4-A)
SIZES = {3: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 9: 5, 10: 5, 11: 5, 12: 5, 15: 4, 16: 3, 17: 5, 18: 5, 19: 3, 20: 3}
