"""The in-process checker: a real trace is accepted, and a trace that is wrong anywhere is not."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from palimpsest.actions import ACTIONS
from palimpsest.prefix_cache.interface import ModelCachePolicy
from palimpsest.trace import Event, MemorySink, NdjsonSink
from palimpsest_model_check.replay.machine import Machine, load, replay
from palimpsest_model_check.replay.verdict import TraceError
from tests.support import Gate, Script, fail_at, hit, more, prefill, tag_of

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
    # a second charge is legal in itself; the sums after it are not
    assert verdict.accepted == at + 1 or (action == "reserve" and verdict.accepted > at)


CHANGES = {
    "another version": (
        "publish",
        lambda e: e.post["slots"]["keys"]["k"]["version"].__setitem__(0, 99),
        "slots.version",
    ),
    "another tenant": ("publish", lambda e: e.post["slots"]["tenant"].__setitem__(0, 99), "slots.tenant"),
    "another writer": ("publish", lambda e: e.post["slots"]["keys"]["k"]["writer"].__setitem__(0, 99), "slots.writer"),
    "a row not written": (
        "begin_pool_write",
        lambda e: [r.update(slots=r["slots"][1:], tids=r["tids"][1:]) for r in e.post["rows"]],
        "rows",
    ),
    "another sum of bytes": ("reserve", lambda e: e.post.update(staged_bytes=1), "staged_bytes"),
    "a record not published": ("complete", lambda e: e.post.update(completed=[]), "records"),
    "a page held by nobody": ("claim_page_end", lambda e: e.post.update(holders=[]), "holders"),
    "a row of somebody else": ("end_fetch", lambda e: e.post["tags"][0].__setitem__(0, 7), "tags"),
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


def corrupted(events: list[Event], dice: random.Random) -> tuple[str, list[Event]]:
    """The events with one thing wrong."""
    kind = dice.choice(["drop", "double", "swap", "number"])
    at = dice.randrange(len(events) - 1)
    if kind == "drop":
        return f"drop {at}", renumbered(events[:at] + events[at + 1 :])
    if kind == "double":
        return f"double {at}", renumbered([*events[: at + 1], *events[at:]])
    if kind == "swap":
        return f"swap {at}", renumbered([*events[:at], events[at + 1], events[at], *events[at + 2 :]])
    lines = copy.deepcopy(events)
    where = numbers_of(lines[at].args) + numbers_of(lines[at].post)
    if not where:
        return corrupted(events, dice)
    holder, place = dice.choice(where)
    holder[place] += dice.choice([1, 5, -1])
    return f"number {at} {place}", lines


def numbers_of(value: Any) -> list[tuple[Any, Any]]:
    """Every place of an event that holds a number."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if hasattr(value, "__len__") else ()
    for place, item in items:
        if isinstance(item, (bool, str)):
            continue
        if isinstance(item, int) or getattr(item, "ndim", None) == 0:
            found.append((value, place))
        else:
            found += numbers_of(item)
    return found


def final_state(config: dict, events: list[Event]) -> str:
    machine = Machine(config)
    for event in events:
        machine.take(event)
    state = machine.s
    tables = {key: [t.version.tolist(), t.status.tolist(), t.pool.tolist()] for key, t in state.keys.items()}
    return json.dumps([tables, state.tenant.tolist(), state.staged_bytes, sorted(state.steps), sorted(state.reads)])


def test_200_random_corruptions_are_rejected_or_are_another_order_of_the_same_behaviour(tmp_path: Path):
    sink = NdjsonSink(tmp_path / "eager.ndjson", tag_of)
    busy_run(sink, eager=True)  # the same events each time, so that the dice fall on the same places
    sink.close()
    config, events = load(sink.path)
    dice, survivors = random.Random(20260), []
    true_end = final_state(config, events)
    for _ in range(200):
        what, forged = corrupted(events, dice)
        if replay(what, config, forged).ok:
            survivors.append(what)
            assert what.startswith(("swap", "drop", "double")), what
            assert final_state(config, forged) == true_end, what
    # neighbours on different threads commute; an event that changes nothing (a wait that begins) may be lost
    assert len(survivors) <= 60, survivors


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
