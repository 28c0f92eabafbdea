"""Random programs of a runner: every row is the one that a plain model of the page has, every bad call changes nothing,
every fault is told, nothing is held at the end, and the specification accepts every trace.

`pytest tests/property/test_generated_programs.py --hypothesis-profile soak` runs many more of them.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Executor, Future
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from palimpsest.errors import PalimpsestError
from palimpsest.prefix_cache.hits import HitReader
from palimpsest.prefix_cache.slots import SlotTable
from palimpsest.sync import StandardSync
from palimpsest_model_check.programs import faults, wrong
from palimpsest_model_check.programs.program import Program, WrongError
from palimpsest_model_check.programs.soak import act
from palimpsest_model_check.replay.machine import replay

pytestmark = pytest.mark.forges("each program replays its own trace, so that a rejected one can be made smaller")

#: what the examples of the whole session did
DONE: Counter[str] = Counter()


class Programs(RuleBasedStateMachine):
    """One program; Hypothesis draws what it does, and makes one that fails smaller."""

    @initialize(eager=st.booleans())
    def begin(self, eager):
        self.start(eager)

    def start(self, eager):
        self.program = Program(eager=eager)

    def draw(self, data):
        return lambda n: data.draw(st.integers(0, n - 1))

    @precondition(lambda self: not self.program.lost)
    @rule(data=st.data())
    def step(self, data):
        self.program.step(self.draw(data))

    @precondition(lambda self: not self.program.lost)
    @rule(data=st.data())
    def step_again(self, data):
        self.program.step(self.draw(data))

    @precondition(lambda self: self.program.saved and not self.program.lost)
    @rule(data=st.data())
    def consume(self, data):
        self.program.consume(self.draw(data))

    @precondition(lambda self: not self.program.lost)
    @rule(data=st.data(), what=st.sampled_from([wrong.call_badly, wrong.save_badly, faults.fail_a_save]))
    def go_wrong(self, data, what):
        what(self.program, self.draw(data))

    @precondition(lambda self: not self.program.lost)
    @rule()
    def reset(self):
        self.program.reset()

    @precondition(lambda self: not self.program.lost)
    @rule(data=st.data())
    def lose_a_write(self, data):
        faults.fail_a_write(self.program, self.draw(data))

    @precondition(lambda self: self.program.lost)
    @rule(eager=st.booleans())
    def start_again(self, eager):
        self.end()
        self.start(eager)

    def end(self):
        program, trace = self.program, self.program.trace
        program.finish()
        DONE.update(program.done)
        verdict = replay("this program's trace", trace.config, trace.events)
        assert verdict.ok, str(verdict)

    def teardown(self):
        if hasattr(self, "program"):
            self.end()


def test_every_row_of_a_random_program_is_the_models():
    DONE.clear()
    run_state_machine_as_test(Programs)
    assert all(DONE[what] for what in ("step", "hit", "end", "materialize", "discard", "reset", "lost write"))


def programs(count, eager):
    """What this many programs of random actions did."""
    done: Counter[str] = Counter()
    for seed in range(count):
        choices = random.Random(seed)
        program = Program(eager=eager)
        for _ in range(30):
            act(program, choices.randrange)
        program.finish()
        done += program.done
    return done


def test_every_bad_call_is_refused_and_changes_nothing(eager):
    program = Program(eager=eager)
    for step in range(4):
        program.step(random.Random(step).randrange)
    for place, name in enumerate(wrong.BAD_CALLS):
        wrong.call_badly(program, lambda n: place)  # noqa: B023  called at once
        assert program.done[name] == 1
    program.finish()


def test_every_bad_save_is_refused_and_changes_nothing_and_the_next_save_works(eager):
    program, choices = Program(eager=eager), random.Random(1)
    while not program.rows:
        program.step(choices.randrange)
        program.consume(choices.randrange)
        program.collect()
    names = list(wrong._bad_saves(program, 2))
    assert len(names) > 15
    for name in names:
        for _ in range(50):
            wrong.save_badly(program, choices.randrange, name)
            if program.done[name]:
                break
    assert [name for name in names if not program.done[name]] == []
    program.finish()


def test_programs_fail_in_every_way_and_read_in_every_way(eager):
    done = programs(25, eager)
    for what in ("failed freeze_into", "failed clone", "lost write", "allowed", "a slot twice", "another dtype"):
        assert done[what] > 0


class WhenAsked(Future):
    """What a job gives, which runs when somebody wants it."""

    def __init__(self, job):
        super().__init__()
        self._job = job

    def result(self, timeout=None):
        if not self.done() and self.set_running_or_notify_cancel():
            try:
                self.set_result(self._job())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)


class Late(Executor):
    """Reads are fetched when they are delivered: whatever took their slots has written them by then."""

    def submit(self, job, /, *args, **named):
        return WhenAsked(partial(job, *args, **named))


def _nothing_preserved(patch):
    patch.setattr(StandardSync, "executor", lambda self, name: Late())
    patch.setattr(HitReader, "copy_aside", lambda self, key, slots, spared=(): [])


def _blocks_keep_their_rows(patch):
    patch.setattr(SlotTable, "retire", lambda self, slots: [])


def _reads_stay(patch):
    patch.setattr(HitReader, "drop_all", lambda self, reads: [])


@pytest.mark.parametrize("slip", [_nothing_preserved, _blocks_keep_their_rows, _reads_stay])
def test_a_slip_in_the_cache_is_noticed_by_the_model_alone(slip, monkeypatch):
    slip(monkeypatch)
    with pytest.raises((WrongError, PalimpsestError)):
        programs(60, eager=True)  # ends at the first that notices
