"""Keys that were treated alike share a table; they are told apart once a step treats them unlike, and for good."""

from __future__ import annotations

import numpy as np
import pytest

from palimpsest.trace import Event, MemorySink
from palimpsest_model_check.replay.machine import Machine, replay
from palimpsest_model_check.replay.state import State
from palimpsest_model_check.replay.tables import distinct
from tests.support import Script, more, prefill, tag_of
from tests.trace.corruptions import changed_fields

CONFIG = {"num_blocks": 2, "block_size": 4, "budget_bytes": 0, "pages": 1}


def test_keys_share_a_table_until_a_step_treats_them_unlike():
    s = State(CONFIG)
    s.tell_apart(["a", "b"], ["d"])
    assert s.keys["a"] is s.keys["b"] is not s.keys["d"]
    s.keys["a"].version[3] = 1

    s.tell_apart(["a"], ["d"])
    assert s.keys["a"] is not s.keys["b"]
    s.keys["a"].version[3] += 1
    assert (s.keys["a"].version[3], s.keys["b"].version[3], s.keys["d"].version[3]) == (2, 1, 0)

    s.tell_apart(["a", "b"], ["d"])
    assert s.keys["a"] is not s.keys["b"]
    assert {key: table for keys, table in s.families.items() for key in keys} == s.keys


def test_a_key_that_comes_later_has_its_own_table():
    s = State(CONFIG)
    s.tell_apart(["a"], [])
    s.keys["a"].version[:] = 5
    s.tell_apart(["a", "b"], [])
    assert s.keys["b"].version.tolist() == [0] * s.num_slots


@pytest.fixture(scope="module")
def trace() -> tuple[dict, list[Event]]:
    """Two keys written alike, then one of them alone over the same blocks, then both again."""
    sink = MemorySink(tag_of)
    s = Script(trace=sink)
    s.run({"a": prefill([0, 1], 6)}, "k", "m")
    s.run({"b": prefill([1, 2], 6)}, "k", finished=["a"])
    s.run({"b": more([1, 2, 3], 4)}, "k", "m")
    s.close()
    return sink.config, sorted(sink.events, key=lambda event: event.seq)


def test_a_step_without_one_of_two_keys_is_accepted(trace):
    config, events = trace
    assert replay("apart", config, events).ok
    machine = Machine(config)
    for event in events:
        machine.take(event)
    assert machine.s.keys["k"] is not machine.s.keys["m"]


def test_whatever_is_logged_wrong_of_either_key_is_found_at_its_event(trace):
    config, events = trace
    tried = 0
    for at, event in enumerate(events):
        if event.action != "publish":
            continue
        for corruption in changed_fields(events, at, ["k", "m"]):
            if corruption.what.startswith("post.slots.keys"):
                verdict = replay("wrong", config, [*events[:at], *corruption.events, *events[at + 1 :]])
                assert verdict.accepted == at, corruption.what
                tried += 1
    assert tried > 50


@pytest.mark.parametrize("size", [0, 1, 7, 41, 300])
def test_distinct_numbers_are_each_given_once_and_in_order(size):
    chance = np.random.default_rng(size)
    for values in (chance.integers(0, 9, size), np.sort(chance.integers(0, 9, size))):
        assert distinct(values) == np.unique(values).tolist()
