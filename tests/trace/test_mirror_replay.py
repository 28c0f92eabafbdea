"""Traces of the host mirror: accepted as they are, and rejected, or the same behavior for a reason, when changed."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from palimpsest import cli
from palimpsest.host_mirror import HostMirror
from palimpsest.host_mirror.actions import MIRROR_ACTIONS
from palimpsest.kv_cache import KVCacheBlockCopy
from palimpsest.trace import Event, NdjsonSink
from palimpsest_model_check.replay.machine import load, replay
from palimpsest_model_check.replay.verdict import TraceError
from tests.mirror_support import DRAFT, ROWS, TARGETS, Pages, Steps, config, identities, rows, thread_ranks
from tests.support import Background
from tests.trace.corruptions import Corruption, Outcome, Replayed, changed_fields, doubled, dropped, swapped

Trace = tuple[dict[str, Any], list[Event]]


def select(steps: Steps, owner: Pages, positions: list[int]) -> None:
    steps.mirror.begin_forward(steps.batch(owner, range(8, 9), deferred=True))
    steps.mirror.select(0, np.array([positions], dtype=np.int64))
    for layer in TARGETS:
        steps.mirror.gather(layer)
    steps.mirror.finish_forward()


def busy(steps: Steps) -> None:
    """Prefills, rejected drafts, imports, copies, spills and restores, hot rows, blocks that change hands."""
    first, second = Pages(0, [5, 2, 7], [3, 0, 4]), Pages(1, [1, 6, 3], [1, 2, 5])
    with steps:
        mirror = steps.mirror
        mirror.set_request(0, first.host)
        steps.step(first, 1, range(6), first.transfer(1, 0, after_forward=True))
        steps.step(first, 1, range(6, 9), accepted=[1, 1, 0])
        steps.start(first.transfer(2, 1))
        mirror.worker.dma_stream.synchronize()
        mirror.take_completed_transfers()
        for layer in (*TARGETS, DRAFT):
            mirror.import_rows(layer, second.host_slots(range(6)), rows(2, range(6), layer, 0))
        mirror.set_request(1, second.host)
        steps.start(second.transfer(3, 1, restore=True), mirrors={"r": second.mirrors(range(6, 8))})
        mirror.ranks.barrier()  # else the writer's rows land in the page while the other rank restores it, or after
        steps.forward(second, 2, range(6, 8), accepted=[1, 1])
        steps.start(host_block_copies=[KVCacheBlockCopy(5, 0)])
        select(steps, first, [0, 5])
        steps.start()
        select(steps, first, [0, 6])
        steps.step(first, 1, range(1), first.transfer(4, 0, after_forward=True), accepted=[1])
        steps.start()
        select(steps, first, [0, 5])
        for layer in (*TARGETS, DRAFT):
            mirror.import_rows(layer, first.host_slots(range(4)), rows(3, range(4), layer, 0))
        third = Pages(2, [0], [2])
        steps.start(third.transfer(5, 0, restore=True), source_block_ids=[5])
        select(steps, first, [0, 5])
        mirror.worker.dma_stream.synchronize()
        mirror.take_completed_transfers()


def one_rank(sink: NdjsonSink, *, eager: bool) -> None:
    busy(Steps(HostMirror(config(eager=eager), trace=sink)))


def two_ranks(sink: NdjsonSink) -> None:
    made = [HostMirror(config(engine_id="traced-ranks"), ranks=each, trace=sink) for each in thread_ranks(2)]
    for call in [Background(lambda mirror=mirror: busy(Steps(mirror))) for mirror in made]:
        call.result()


def record(kind: str, folder: Any) -> Any:
    sink = NdjsonSink(folder / f"{kind}.ndjson", identities)
    if kind == "ranks":
        two_ranks(sink)
    else:
        one_rank(sink, eager=kind == "eager")
    sink.close()
    return sink.path


@pytest.fixture(scope="module", params=["eager", "pages", "ranks"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return record(request.param, tmp_path_factory.mktemp("mirror"))


@pytest.fixture(scope="module")
def trace(path: Any) -> Trace:
    return load(path)


def test_a_real_trace_is_accepted_whole_and_takes_every_action(trace):
    verdict = replay("busy", *trace)
    assert verdict.ok, str(verdict)
    assert set(verdict.actions) >= set(MIRROR_ACTIONS) - ({"meet"} if trace[0]["ranks"] == 1 else set())


def test_the_command_replays_it(path, capsys):
    assert cli.main(["replay", "--no-tlc", str(path)]) == 0
    assert "1 of 1 traces accepted" in capsys.readouterr().out


def test_a_trace_that_cannot_see_copies_land_is_held_against_the_order_of_what_is_queued(trace):
    settings, events = trace
    seen = [event for event in events if event.action not in ("copy_runs", "compute_runs")]
    renumbered = [event._replace(seq=number) for number, event in enumerate(seen, 1)]
    unseen = {**settings, "observed": False}
    assert replay("unseen", unseen, renumbered).ok
    at = next(number for number, event in enumerate(renumbered) if event.post.get("handed"))
    renumbered[at] = renumbered[at]._replace(post={**renumbered[at].post, "handed": []})
    assert not replay("forged", unseen, renumbered).ok


#: what a trace may say otherwise and still be a behavior that ends in the same state, and why
EQUIVALENT = {
    "swapped": "two neighbors that touch different variables: both orders were replayed, to the same state",
    "start_transfers args.transfers.#.host_block_id": "another page that is on the host as well, or moves as well",
    "start_transfers args.transfers.#.resident_block_ids": "rows were mirrored one by one: the page is not copied",
    "compute_runs post.restored.#.tags": "a row of the page that nobody has written",
    "copy_host_blocks args.copies its last twice": "the same copy once more",
    "start_transfers args.mirrors": "a row that was rejected, or any on a reader: it is never mirrored",
    "start_transfers args.transfers.#.transfer_id": "on a reader, which acknowledges nothing",
    "forget_state args.rank": "nothing is hot on either rank",
    "finish_step dropped": "the last step that was begun need not be finished",
    "write doubled": "the same rows once more: they are handed on once",
    "finish_target args": "a forward that wrote nothing, and of whose rows none is hot",
    "invalidate_blocks doubled": "the blocks were forgotten already",
    "forget_state dropped": "nothing was hot in the state",
    "forget_state doubled": "nothing is hot in the state any more",
    "forget_state args.state": "nothing was hot in either state",
    "import_rows doubled": "the same rows once more",
    "gather dropped": "rows that attention does not ask for",
    "gather doubled": "the same rows, asked for twice",
    "gather args.layer": "another layer of the group, which asks for the same rows",
    "select doubled": "the same selection: all of it is hot",
    "copy_host_blocks dropped": "a reader, which copies nothing",
    "shutdown dropped": "the trace ends before its last event",
    "write args.device.#": "a row that the step does not mirror: it may lie anywhere",
}
#: what a trace may say otherwise although its end differs: what nobody uses any more
UNUSED = {
    "shutdown dropped": "a trace may end earlier",
    "import_rows dropped": "rows of a layer that nobody reads afterwards",
    "import_rows args.slots.#": "the same, at another slot",
    "import_rows args.slots": "the same, a row less",
    "import_rows args.layer": "the same, another layer",
    "import_rows post.tags.#": "identities of rows that nobody reads afterwards",
    "import_rows post.tags": "the same",
    "gather args.rank": "another rank, which selected the same",
    "gather dropped": "hot rows that nobody asks for afterwards",
    "gather args.layer": "the same",
    "write post.tags.#": "identities of rows that no copy and no read shows again",
    "take_completed_transfers dropped": "the last report: a transfer may be heard of later",
}


def reason(outcome: Outcome) -> str | None:
    """Why an accepted corruption is the same behavior, or leaves no trace."""
    done = outcome.corruption
    if done.what == "swapped":
        return EQUIVALENT["swapped"] if outcome.same_end else None
    words = done.what.split(" ")[0].split(".")
    keys = [f"{done.action} {'.'.join(words[:length])}" for length in range(len(words), 0, -1)]
    return next((table[key] for table in (EQUIVALENT, UNUSED) for key in keys if key in table
                 and (table is UNUSED or outcome.same_end)), None)  # fmt: skip


def assert_found_or_equivalent(outcomes: list[Outcome]) -> None:
    accepted = [outcome for outcome in outcomes if outcome.found_after is None]
    unexplained = {
        f"{outcome.corruption.action} {outcome.corruption.what} {outcome.corruption.at} {outcome.same_end}"
        for outcome in accepted
        if reason(outcome) is None
    }
    assert not unexplained, "\n".join(sorted(unexplained))
    assert all(outcome.rejection.properties for outcome in outcomes if outcome.rejection is not None)


def samples(events: list[Event], dice: random.Random) -> set[int]:
    """Of each action the first event and one more."""
    at: dict[str, list[int]] = {}
    for number, event in enumerate(events[:-1]):
        at.setdefault(event.action, []).append(number)
    return {number for found in at.values() for number in (found[0], dice.choice(found))}


def test_every_field_of_every_action_is_checked_where_a_change_of_it_would_mean_something(trace):
    settings, events = trace
    at = samples(events, random.Random(7))
    true = Replayed(settings, events, at)
    forged = [each for number in sorted(at) for each in changed_fields(events, number, ["nobody"], per_list=1)]
    outcomes = [true.try_out(each) for each in forged]
    assert len(outcomes) > 300
    assert_found_or_equivalent(outcomes)


def corrupted(events: list[Event], dice: random.Random) -> Corruption:
    """One thing wrong somewhere."""
    at = dice.randrange(len(events) - 2)
    kind = dice.choice([dropped, doubled, swapped, changed_fields])
    if kind is not changed_fields:
        return kind(events, at)
    forged = list(changed_fields(events, at, ["nobody"]))
    return dice.choice(forged) if forged else corrupted(events, dice)


def test_100_random_corruptions_are_rejected_or_the_same_for_a_reason(trace):
    settings, events = trace
    dice = random.Random(20260)
    forged = [corrupted(events, dice) for _ in range(100)]
    true = Replayed(settings, events, {each.at for each in forged})
    outcomes = [true.try_out(each) for each in forged]
    assert_found_or_equivalent(outcomes)
    assert sum(outcome.found_after is not None for outcome in outcomes) > 60


@pytest.mark.parametrize(
    ("action", "change", "why"),
    [
        ("write", lambda line: line["args"].pop("rank"), "lacks: ..rank"),
        ("write", lambda line: line["post"].update(more=1), "nobody knows: ..more"),
        ("write", lambda line: line["args"].update(layer="0"), "layer: '0' is not an integer"),
        ("copy_runs", lambda line: line["post"]["rows"][0].pop("host"), "rows: fields that it lacks"),
        ("select", lambda line: line.update(action="publish"), "'publish' is not an action"),
    ],
)
def test_an_event_of_another_form_is_an_error_with_its_line(tmp_path, action, change, why):
    lines = [json.loads(line) for line in record("eager", tmp_path).read_text().splitlines()]
    change(next(line for line in lines[1:] if line["action"] == action))
    forged = tmp_path / "forged.ndjson"
    forged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TraceError, match=rf"forged\.ndjson:\d+: .*({why})"):
        load(forged)


def test_a_header_that_lacks_something_is_an_error(tmp_path):
    lines = record("eager", tmp_path).read_text().splitlines()
    head = json.loads(lines[0])
    del head["config"]["layers"]
    (tmp_path / "bad.ndjson").write_text("\n".join([json.dumps(head), *lines[1:]]) + "\n")
    with pytest.raises(TraceError, match=r"bad\.ndjson:1: the header's config: .*lacks: ..layers"):
        load(tmp_path / "bad.ndjson")


def test_rows_per_page_are_what_the_header_says(trace):
    assert trace[0]["block_rows"] == ROWS
