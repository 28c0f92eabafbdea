"""The in-process checker: a real trace is accepted, and a trace that is wrong anywhere is not."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from palimpsest import cli
from palimpsest.actions import ACTIONS
from palimpsest.prefix_cache.interface import ModelCachePolicy
from palimpsest.trace import Event, MemorySink, NdjsonSink
from palimpsest_model_check.replay.machine import load, replay
from palimpsest_model_check.replay.schema import FORMS
from palimpsest_model_check.replay.verdict import TraceError
from tests.support import Gate, Script, fail_at, hit, more, prefill, tag_of
from tests.trace.corruptions import Corruption, Outcome, Replayed, changed_fields, doubled, dropped, swapped

DEFERRED = ModelCachePolicy(deferred_keys=frozenset({"d"}))


def busy_run(trace: Any, *, eager: bool) -> None:
    """A run with reuse under pending reads, same-step hits, budget flushes, aborts, a reset and a shutdown."""
    s = Script(DEFERRED, eager=eager, trace=trace, gpu_staging_bytes=9 * 16)
    for number in range(12):
        block = number % 3
        parts = {f"a{number}": prefill([block, 4 + block], 6)}
        if number % 3 == 1:
            parts[f"b{number}"] = hit([block, 8], 4, 2)
        if number > 2 and number % 3 == 2:
            parts[f"c{number}"] = hit([(number - 1) % 3, 9], 4, 2)
        ended = [f"{kind}{number - 2}" for kind in "abc"] if number > 1 else []
        reads = Gate()
        s.cache._prefetch_pool.submit(reads.wait_here)
        step = s.step(parts, "k", "d", finished=ended)
        following = None
        if len(parts) > 1:
            following = s.step({f"r{number}": prefill([block], 4)}, "k", finished=list(parts))
        reads.open()
        s.cache.materialize(step, list(parts)[:1] if number == 5 else list(parts))
        if following is not None:
            s.cache.discard_step(following)
    s.idle()
    s.cache.reset()
    s.run({"z": prefill([0], 4)}, "k", "d")
    s.run({"z": more([0, 1], 4)}, "d")
    s.close()


@pytest.fixture(scope="module", params=["eager", "threaded"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list[Event]]:
    path = tmp_path_factory.mktemp("trace") / "busy.ndjson"
    sink = NdjsonSink(path, tag_of)
    busy_run(sink, eager=request.param == "eager")
    sink.close()
    return load(path)


def test_a_real_trace_is_accepted_whole_and_counted(trace):
    config, events = trace
    verdict = replay("busy", config, events)
    assert verdict.ok, str(verdict)
    assert verdict.accepted == len(events) > 400
    assert sum(verdict.actions.values()) == len(events)


def test_the_run_takes_nearly_every_action_of_the_registry(trace):
    _, events = trace
    missing = set(ACTIONS) - {event.action for event in events}
    assert missing <= {"fail", "record_failure", "overwrite_live", "unreserve", "join_begin", "join_end", "drop_read"}


def test_failures_and_what_a_refused_save_gives_back_are_actions_of_the_specification():
    sink = MemorySink(tag_of)
    s = Script(DEFERRED, eager=False, trace=sink, staging_depth=1, staging_claim_timeout_s=0.05)
    first = s.step({"a": prefill([0], 4)}, "d")
    s.settle()
    s.begin({"b": prefill([1], 4)})
    with pytest.raises(TimeoutError):
        s.save("d")
    s.cache.discard_step(first)
    fail_at(s.cache._pool, "write", OSError("planted"))
    s.cache.discard_step(s.save("d"))
    s.close()
    verdict = s.verdict()
    assert verdict.ok, str(verdict)
    assert {"unreserve", "fail", "record_failure"} <= set(verdict.actions)


def renumbered(events: list[Event]) -> list[Event]:
    return [event._replace(seq=number) for number, event in enumerate(events, 1)]


def test_a_dropped_event_is_found_where_it_is_missing(trace):
    config, events = trace
    verdict = replay("dropped", config, events[:50] + events[51:])
    assert not verdict.ok
    assert verdict.accepted == 50
    assert "51 is due" in str(verdict)


@pytest.mark.parametrize("action", ["publish", "complete", "drain", "host_ready", "claim_page_end", "begin_fetch"])
def test_a_dropped_event_is_found_also_when_the_numbers_hide_it(trace, action):
    config, events = trace
    at = next(i for i, event in enumerate(events) if event.action == action)
    assert not replay("dropped", config, renumbered(events[:at] + events[at + 1 :])).ok


@pytest.mark.parametrize("action", ["publish", "complete", "drain", "host_ready", "claim_page_end", "reserve"])
def test_a_doubled_event_is_found_at_the_double(trace, action):
    config, events = trace
    at = next(i for i, event in enumerate(events) if event.action == action)
    verdict = replay("doubled", config, renumbered(events[: at + 1] + [events[at]] + events[at + 1 :]))
    assert not verdict.ok
    assert verdict.accepted == at + 1


def other_first(fields: dict[str, Any], name: str) -> None:
    """Another first number in an array of an event, which other events may share."""
    changed = fields[name].copy()
    changed.flat[0] = 99
    fields[name] = changed


CHANGES = {
    "another version": (
        "publish",
        lambda e: other_first(e.post["slots"]["keys"]["k"], "version"),
        "slots.version",
    ),
    "another tenant": ("publish", lambda e: other_first(e.post["slots"], "tenant"), "slots.tenant"),
    "another writer": ("publish", lambda e: other_first(e.post["slots"]["keys"]["k"], "writer"), "slots.writer"),
    "a row not written": (
        "begin_pool_write",
        lambda e: [r.update(slots=r["slots"][1:], tids=r["tids"][1:]) for r in e.post["rows"]],
        "rows",
    ),
    "another sum of bytes": ("reserve", lambda e: e.post.update(staged_bytes=1), "staged_bytes"),
    "a record not published": ("complete", lambda e: e.post.update(completed=[]), "records"),
    "a page held by nobody": ("claim_page_end", lambda e: e.post.update(holders=[]), "holders"),
    "a row of somebody else": ("end_fetch", lambda e: other_first(e.post, "tags"), "tags"),
}


@pytest.mark.parametrize("why", CHANGES)
def test_a_changed_post_state_is_found_at_its_event_and_the_variable_is_named(trace, why):
    config, events = trace
    action, change, variable = CHANGES[why]
    at = next(i for i, event in enumerate(events) if event.action == action)
    forged = copy.deepcopy(events)
    change(forged[at])
    verdict = replay(why, config, forged)
    assert not verdict.ok
    assert verdict.accepted == at
    assert verdict.rejection is not None
    assert verdict.rejection.name == variable
    assert verdict.rejection.properties


def small_demo(path: Path) -> None:
    """A demo with shared prefixes, blocks reused under pressure, preemptions and clients that leave."""
    assert cli.main(["demo", "--requests", "16", "--blocks", "40", "--no-tlc", "--trace-out", str(path)]) == 0


@pytest.fixture(scope="module", params=["eager", "threaded", "demo"])
def true_trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list[Event]]:
    path = tmp_path_factory.mktemp("true") / f"{request.param}.ndjson"
    if request.param == "demo":
        small_demo(path)
    else:
        sink = NdjsonSink(path, tag_of)
        busy_run(sink, eager=request.param == "eager")
        sink.close()
    return load(path)


#: what a trace may say otherwise and still be a behavior that ends in the same state, and why
EQUIVALENT = {
    "swapped": "two neighbors that touch different variables: both orders were replayed, to the same state",
    "join_begin dropped": "a wait for tasks that nobody waits for to the end: it changes nothing",
    "join_begin doubled": "the first wait ran out and was tried again: it changes nothing",
    "join_end dropped": "the wait ran out, and its thread went on with something that does not rest on it",
    "begin_step doubled": "an idle step and then the same step: nothing was planned in between",
    "begin_step dropped": "an idle step that ended nobody and gave no block to anybody",
    "overwrite_live dropped": "the first forward of a runner that reports them from the second on",
    "begin_step args.ended": "the end of a request that never saved: the cache knows nothing of it",
    "begin_step args.ended.#": "likewise, under another name",
    "publish args.requests.#": "a request that saves once and that nobody speaks of again, under another name",
    "begin_fetch dropped": "a read that is given up before its fetch ends may as well be given up before it begins",
    "reserve args.nbytes.#": "a charge that does not fit, of another size that does not fit: nothing is charged",
    "reserve doubled": "a charge of nothing",
    "drain dropped": "the end's drain, with no record to take",
}


def reason(outcome: Outcome) -> str | None:
    """Why an accepted corruption is the same behavior."""
    done = outcome.corruption
    if done.what == "swapped":
        return EQUIVALENT["swapped"]
    field = done.what.split(" ")[0] + (".#" if done.what.startswith("args.nbytes") else "")
    return EQUIVALENT.get(f"{done.action} {field}")


def assert_found_or_equivalent(outcomes: list[Outcome]) -> None:
    accepted = [outcome for outcome in outcomes if outcome.found_after is None]
    unexplained = [
        (outcome.corruption.at, outcome.corruption.action, outcome.corruption.what)
        for outcome in accepted
        if not outcome.same_end or reason(outcome) is None
    ]
    assert not unexplained
    assert all(outcome.rejection.properties for outcome in outcomes if outcome.rejection is not None)


def samples(events: list[Event], dice: random.Random) -> set[int]:
    """Of each action the first event, the last and one more."""
    at: dict[str, list[int]] = {}
    for number, event in enumerate(events[:-1]):
        at.setdefault(event.action, []).append(number)
    return {number for found in at.values() for number in (found[0], found[-1], dice.choice(found))}


def test_every_field_of_every_action_is_checked_where_a_change_of_it_would_mean_something(true_trace):
    config, events = true_trace
    at = samples(events, random.Random(7))
    true = Replayed(config, events, at)
    words = [next(e for e in events if e.action == "publish").args["requests"][0], "QUEUED", "WRITTEN"]
    outcomes = [true.try_out(forged) for number in sorted(at) for forged in changed_fields(events, number, words)]
    assert len(outcomes) > 1000
    assert_found_or_equivalent(outcomes)
    late = {o.corruption.what.split(" ")[0] for o in outcomes if o.found_after and o.corruption.what.startswith("post")}
    # The code numbers reads as it likes, and whether a key is tagged shows when its rows land: found when used.
    assert late <= {"post.reads.#.read", "post.tags"}


def corrupted(events: list[Event], dice: random.Random) -> Corruption:
    """One thing wrong somewhere."""
    at = dice.randrange(len(events) - 2)
    kind = dice.choice([dropped, doubled, swapped, changed_fields])
    if kind is not changed_fields:
        return kind(events, at)
    forged = list(changed_fields(events, at, ["nobody"]))
    return dice.choice(forged) if forged else corrupted(events, dice)


def test_200_random_corruptions_are_rejected_or_lead_to_the_same_state_for_a_reason(true_trace):
    config, events = true_trace
    dice = random.Random(20260)
    forged = [corrupted(events, dice) for _ in range(200)]
    true = Replayed(config, events, {each.at for each in forged})
    outcomes = [true.try_out(each) for each in forged]
    assert_found_or_equivalent(outcomes)
    assert sum(outcome.found_after is not None for outcome in outcomes) > 120


def forge_line(path: Path, tmp_path: Path, action: str, change: Any) -> Path:
    """The trace at `path` with the first line of an action changed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(next(line for line in lines[1:] if line["action"] == action))
    forged = tmp_path / "forged.ndjson"
    forged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return forged


@pytest.mark.parametrize(
    ("action", "change", "why"),
    [
        ("reserve", lambda line: line["args"].pop("fits"), "reserve: .*lacks: ..fits"),
        ("reserve", lambda line: line["args"].update(more=1), "nobody knows: ..more"),
        ("reserve", lambda line: line["args"].update(nbytes=1.0), "args|nbytes: 1.0 is not an integer"),
        ("reserve", lambda line: line["args"].update(fits=1), "fits: 1 is not true or false"),
        ("publish", lambda line: line["args"].update(slots=["a"]), "slots: .*is not a list of integers"),
        ("publish", lambda line: line["args"].update(slots=[True]), "slots: .*is not a list of integers"),
        ("publish", lambda line: line["post"].update(lost=[{"tid": 1}]), "lost: fields that it lacks"),
        ("publish", lambda line: line["post"].update(holders=[["who", 1]]), "holders: .*step"),
        ("publish", lambda line: line["post"]["slots"]["keys"]["k"].update(status=[3]), "status: .*0, 1 and 2"),
        ("freeze", lambda line: line["post"]["tags"].update(k=[[1], [1, 2]]), "tags: k: .*one length"),
        ("wake", lambda line: line["post"].update(tasks={"1": "DONE"}), "tasks: .*states of tasks"),
        ("drain", lambda line: line.update(action="dance"), "'dance' is not an action"),
        ("drain", lambda line: line.update(note=""), "nobody knows its ..note"),
        ("drain", lambda line: line.update(seq="1"), "is not an integer"),
    ],
)
def test_an_event_with_a_field_too_many_too_few_or_of_a_wrong_type_is_an_error_with_its_line(
    tmp_path, action, change, why
):
    sink = NdjsonSink(tmp_path / "true.ndjson", tag_of)
    busy_run(sink, eager=True)
    sink.close()
    with pytest.raises(TraceError, match=rf"forged\.ndjson:\d+: .*({why})"):
        load(forge_line(sink.path, tmp_path, action, change))


def test_the_schema_says_what_every_action_of_the_registry_is_made_of():
    assert set(FORMS) == set(ACTIONS)


def test_a_part_of_a_trace_is_never_accepted(trace):
    config, events = trace
    for stop in (1, 100, len(events) - 1):
        assert not replay("a part", config, events[:stop]).ok


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ('{"schema": 1, "config": {"num_blocks": 1, "block_size": 1, "pages": 1, "budget_bytes": 1}}\n', "no events"),
        ('{"schema": 9, "config": {}}\n', "schema 9"),
        ('{"schema": 1, "config": {}}\n', "lacks"),
        ('{"schema": 1, "config"', "truncated"),
        ("[]\n", "not an object"),
        ("nonsense\n", "not JSON"),
    ],
)
def test_what_is_not_a_whole_trace_is_an_error_and_never_a_pass(tmp_path: Path, text: str, why: str):
    path = tmp_path / "bad.ndjson"
    path.write_text(text)
    with pytest.raises(TraceError, match=why):
        load(path)


def test_an_empty_list_of_events_is_not_accepted():
    config = {"num_blocks": 1, "block_size": 1, "pages": 1, "budget_bytes": 1}
    assert not replay("empty", config, []).ok


def test_a_pool_write_of_no_rows_asks_for_no_identities():
    def strict(key: str, rows: Any) -> Any:
        assert len(rows), "asked for the identities of no rows"
        return tag_of(key, rows)

    s = Script(DEFERRED, trace=MemorySink(strict))
    s.run({"a": prefill([0], 4)}, "d")
    s.run({"b": prefill([0], 4)}, "d")
    s.idle(finished=["a"])  # all of a's deferred rows were taken over
    s.close()
    assert s.verdict().ok
