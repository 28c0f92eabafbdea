"""Traces of the host mirror in TLC: the code's are behaviors of its specification, and wrong ones are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest import cli
from palimpsest.runners.sparse import SparseRequest, SparseRunner, SparseSettings
from palimpsest.trace import Event, MemorySink
from palimpsest_model_check.replay.machine import load
from palimpsest_model_check.tlc_replay import replay_in_tlc, replayable, windows
from palimpsest_model_check.tlc_replay.mirror_trace import MirrorTrace
from tests.trace.test_mirror_replay import record

Trace = tuple[dict[str, Any], list[Event]]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: record(kind, tmp_path_factory.mktemp("mirror")) for kind in ("eager", "pages", "ranks")}


@pytest.fixture(scope="module")
def traces(paths: dict[str, Path]) -> dict[str, Trace]:
    return {kind: load(path) for kind, path in paths.items()}


def parts(name: str, trace: Trace) -> list[MirrorTrace]:
    return [part for part in windows(name, *trace) if isinstance(part, MirrorTrace)]


def unseen(trace: Trace) -> Trace:
    """What a device's trace has: no event when copies land and waits end."""
    events = [event for event in trace[1] if event.action not in ("copy_runs", "compute_runs")]
    return {**trace[0], "observed": False}, [event._replace(seq=number) for number, event in enumerate(events, 1)]


def served() -> Trace:
    """A run of the sparse runner: drafts rejected, requests preempted, spilled and restored."""
    sink = MemorySink()
    requests = [SparseRequest(f"r{n}", tuple(range(n, n + 17)), 16, preempted_at=(15 + n, 22, 29)) for n in range(4)]
    SparseRunner(requests, SparseSettings(num_resident_blocks=6), trace=sink).run()
    sink.close()
    return sink.config, sink.events


def test_runs_are_accepted_whole_or_by_host_blocks_of_one_rank_and_of_two_seen_or_unseen(traces):
    chosen = [part for kind in ("eager", "ranks") for part in parts(kind, traces[kind])]
    chosen += parts("unseen", unseen(traces["eager"]))
    blocks = parts("served", served())
    assert len(blocks) == 4
    assert not any(part.choice.whole for part in blocks)
    assert {"select", "gather", "finish_drafts"} <= {event["action"] for part in blocks for event in part.events}
    verdicts = replay_in_tlc([*chosen, *blocks])
    assert all(verdict.ok for verdict in verdicts), "\n".join(map(str, verdicts))
    assert [verdict.events for verdict in verdicts] == [len(part.events) for part in (*chosen, *blocks)]
    assert {part.choice.target for part in chosen} == {0, 1}
    assert all(part.choice.draft == 2 and part.choice.whole for part in chosen)
    told = {event["action"] for part in chosen for event in part.events}
    assert told == {event.action for _, events in traces.values() for event in events}


def test_the_command_replays_a_mirror_in_tlc_as_well(paths, capsys):
    assert cli.main(["replay", str(paths["pages"])]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 traces accepted in process" in said
    assert "2 of 2 parts accepted by TLC" in said


Change = Callable[[list[dict[str, Any]]], int]


def at(events: list[dict[str, Any]], action: str, which: int = 0, **has: Any) -> int:
    """The place of one of the events of an action that have something to say."""
    found = [n for n, e in enumerate(events) if e["action"] == action and all(e[name] == v for name, v in has.items())]
    return found[which]


def without_last(action: str, field: str) -> Change:
    def change(events: list[dict[str, Any]]) -> int:
        place = next(n for n, e in enumerate(events) if e["action"] == action and e[field])
        events[place][field] = events[place][field][:-1]
        return place

    return change


def says(action: str, which: int = 0, **fields: Any) -> Change:
    def change(events: list[dict[str, Any]]) -> int:
        place = at(events, action, which)
        events[place] |= fields
        return place

    return change


def doubled(action: str) -> Change:
    def change(events: list[dict[str, Any]]) -> int:
        place = at(events, action)
        events.insert(place, events[place])
        return place + 1

    return change


def dropped(action: str, then: str, **has: Any) -> Change:
    """Without one of an action; the next one of another action is not possible."""

    def change(events: list[dict[str, Any]]) -> int:
        place = at(events, action, **has)
        del events[place]
        return next(n for n in range(place, len(events)) if events[n]["action"] == then)

    return change


def waits_for_nothing(events: list[dict[str, Any]]) -> int:
    """A wait is over before the copies that it was for have landed."""
    place = next(
        n
        for n, e in enumerate(events[1:], 1)
        if (events[n - 1]["action"], e["action"]) == ("copy_runs", "compute_runs")
    )
    events[place - 1], events[place] = events[place], events[place - 1]
    return place - 1


WRONG: dict[str, tuple[Change, set[str]]] = {
    "a row is not handed on": (without_last("write", "handed"), {"handed"}),
    "a rejected row is handed on": (says("finish_target", 1, handed=[["target", 0, 0, 0]]), {"handed"}),
    "a row lands that was not handed on": (without_last("copy_runs", "rows"), {"rows"}),
    "a layer writes another row": (without_last("write", "places"), {"rows"}),
    "a transfer ends twice": (doubled("take_completed_transfers"), {"guard"}),
    "a transfer ends that nobody asked for": (says("take_completed_transfers", taken=[99]), {"guard"}),
    "a page is not queued": (without_last("finish_step", "enqueued"), {"enqueued"}),
    "a row is not fetched": (without_last("select", "missing"), {"missing"}),
    "the other event is waited for": (says("await_writes", 2, waits="even"), {"event"}),
    "a page is restored that was not asked for": (says("compute_runs", restored=[0]), {"restored"}),
    "hot rows of a recycled block stay": (dropped("invalidate_blocks", "select"), {"guard"}),
    "a phase is left out": (dropped("finish_target", "write"), {"guard"}),
    "a wait is for nothing": (waits_for_nothing, {"guard"}),
    "a block is copied before the rows landed": (dropped("copy_runs", "compute_runs"), {"guard"}),
}


@pytest.mark.slow
def test_what_is_wrong_is_rejected_at_its_event_and_says_what_differs(traces):
    right = parts("right", traces["eager"])[0]
    wrong, places = [], {}
    for name, (change, _) in WRONG.items():
        events = copy.deepcopy(right.events)
        places[name] = change(events)
        wrong.append(replace(right, name=name, events=events[: places[name] + 1]))
    verdicts = {verdict.trace: verdict for verdict in replay_in_tlc(wrong)}
    for name, (_, why) in WRONG.items():
        verdict = verdicts[name]
        assert not verdict.ok, name
        assert (verdict.events, set(verdict.why)) == (places[name], why), f"{verdict}"
        assert "pc" in verdict.variables()


def test_a_reader_that_writes_the_pool_and_ranks_that_do_not_meet_are_rejected(traces):
    right = parts("right", traces["ranks"])[0]
    writes, alone = (replace(right, name=name, events=copy.deepcopy(right.events)) for name in ("writes", "alone"))
    place = at(writes.events, "copy_host_blocks", rank="r1")
    writes.events[place]["wrote"] = True
    gone = [n for n, event in enumerate(alone.events) if event["action"] == "meet"][:2]
    alone.events[:] = [event for n, event in enumerate(alone.events) if n not in gone]
    first, second = replay_in_tlc([writes, alone])
    assert (first.events, first.why) == (place, ("writer",))
    assert (second.action, second.why) == ("start_transfers", ("guard",))


def test_of_a_large_trace_each_part_has_a_few_blocks_and_the_request_that_reads_them_most(traces):
    config, events = traces["eager"]
    several = parts("large", (config, events * 6))
    assert all(not part.choice.whole and len(part.choice.blocks) <= 3 for part in several)
    assert {part.choice.target for part in several} == {0, 1}
    assert len(several[0].events) < 6 * len(parts("small", (config, events))[0].events)


def test_one_rank_of_several_is_no_trace_that_tlc_could_take(traces):
    config, events = traces["ranks"]
    assert replayable(config, events)
    assert not replayable(config, [event for event in events if event.args["rank"] == 1])
