"""The scheduler and its primitives: one thread at a time, every order, logical time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from palimpsest_model_check.explore.primitives import CooperativeSync
from palimpsest_model_check.explore.scheduler import Scheduler
from palimpsest_model_check.explore.strategies import DepthFirst, RandomPriorities, Saved
from palimpsest_model_check.explore.threads import GOES, Option, Thread

Program = Callable[[Scheduler, CooperativeSync, list], None]


def run(program: Program, strategy, **budgets) -> tuple[Scheduler, list]:
    """One run of a program's threads, and what they noted."""
    scheduler = Scheduler(strategy, **budgets)
    sync, notes = CooperativeSync(scheduler), []
    scheduler.state = lambda: (sync.state(), tuple(notes), tuple(thread.place() for thread in scheduler.threads))
    program(scheduler, sync, notes)
    scheduler.run()
    return scheduler, notes


def every(program: Program, bound: int, **budgets) -> list[tuple[Scheduler, list]]:
    """All runs within a bound; those that were left early, since they would go on as others did, are not among them."""
    strategy, runs = DepthFirst(bound), []
    while True:
        runs.append(run(program, strategy, **budgets))
        if not strategy.next_run():
            return [each for each in runs if not each[0].left]


def lost_update(scheduler, sync, notes):
    """Two threads add one to a number, read and written in two critical sections."""
    lock, box = sync.lock(), [0]

    def add():
        with lock:
            value = box[0]
        with lock:
            box[0] = value + 1
            notes.append(box[0])

    scheduler.spawn("a", add)
    scheduler.spawn("b", add)


def test_a_lost_update_needs_a_preemption_and_is_found_with_one():
    assert {tuple(notes) for _, notes in every(lost_update, 0)} == {(1, 2)}
    assert (1, 1) in {tuple(notes) for _, notes in every(lost_update, 1)}


def opposed(scheduler, sync, notes):
    """Two threads take two locks in opposite orders."""
    first, second = sync.lock(), sync.lock()
    first.name, second.name = "first", "second"

    def take(one, two):
        with one, two:
            notes.append(one.name)

    scheduler.spawn("a", lambda: take(first, second))
    scheduler.spawn("b", lambda: take(second, first))


def test_a_deadlock_names_who_waits_for_what_and_who_holds_it():
    found = [scheduler.finding for scheduler, _ in every(opposed, 1) if scheduler.finding]
    assert {each.kind for each in found} == {"deadlock"}
    says = str(found[0])
    for part in ("a at: acquire second", "b at: acquire first", "first is held by a", "second is held by b"):
        assert part in says


def polling(scheduler, sync, notes):
    """Two threads that each wait for the other to stop polling."""
    for name in ("a", "b"):
        scheduler.spawn(name, lambda: [scheduler.point("look", "") for _ in iter(lambda: sync.pause(1.0), 1)])


def test_threads_that_move_for_ever_are_a_livelock():
    scheduler, _ = run(polling, Saved([]), most_steps=500)
    assert scheduler.finding is not None
    assert scheduler.finding.kind == "livelock"


def waiting(scheduler, sync, notes):
    """One thread waits an hour for an event that another sets."""
    event = sync.event()
    scheduler.spawn("waits", lambda: notes.append((event.wait(3600.0), sync.now())))
    scheduler.spawn("sets", event.set)


def test_a_bounded_wait_runs_out_only_where_that_is_allowed():
    assert {tuple(notes) for _, notes in every(waiting, 2)} == {((True, 0.0),)}
    assert {tuple(notes) for _, notes in every(waiting, 2, timeouts=1)} == {((True, 0.0),), ((False, 3600.0),)}


def test_a_wait_that_only_a_time_out_can_end_is_a_deadlock_or_runs_out():
    def alone(scheduler, sync, notes):
        scheduler.spawn("waits", lambda: notes.append(sync.event().wait(1.0)))

    scheduler, _ = run(alone, Saved([]))
    assert scheduler.finding is not None
    assert scheduler.finding.kind == "deadlock"
    assert run(alone, Saved([]), timeouts=1)[1] == [False]


def test_a_condition_wakes_those_who_waited_longest_and_they_hold_the_lock():
    def program(scheduler, sync, notes):
        lock = sync.lock()
        condition = sync.condition(lock)

        def wait(name):
            with condition:
                notes.append((name, condition.wait(), lock.owner))

        for name in ("a", "b"):
            scheduler.spawn(name, lambda name=name: wait(name))

        def wake():
            for _ in range(2):
                scheduler.settle()
                with condition:
                    condition.notify()

        scheduler.spawn("wakes", wake)

    assert run(program, Saved([]))[1] == [("a", True, "a"), ("b", True, "b")]


def test_an_executor_runs_jobs_in_order_gives_their_errors_and_cancels_what_has_not_begun():
    def program(scheduler, sync, notes):
        pool = sync.executor("pool")

        def use():
            jobs = [pool.submit(lambda: 1), pool.submit(lambda: 1 // 0), pool.submit(lambda: 3)]
            assert jobs[2].cancel()
            notes.append(jobs[0].result())
            with pytest.raises(ZeroDivisionError):
                jobs[1].result()
            pool.shutdown()

        scheduler.spawn("uses", use)

    scheduler, notes = run(program, Saved([]))
    assert (scheduler.finding, notes) == (None, [1])


def test_an_error_that_nobody_expects_is_found_and_every_thread_ends():
    def program(scheduler, sync, notes):
        event = sync.event()
        scheduler.spawn("waits", event.wait)
        scheduler.spawn("fails", lambda: 1 // 0)

    scheduler, _ = run(program, Saved([]))
    assert str(scheduler.finding).startswith("exception: fails raised ZeroDivisionError")
    assert all(thread.done for thread in scheduler.threads)


def left_behind(scheduler, sync, notes):
    """A thread does under no lock any more what belongs into its section."""
    lock, rows = sync.lock(), []

    def write():
        with lock:
            notes.append("published")
        rows.append("row")

    def read():
        with lock:
            if "published" in notes:
                notes.append(tuple(rows))

    scheduler.spawn("writes", write)
    scheduler.spawn("reads", read)


def test_what_a_thread_does_right_after_a_section_can_come_late():
    assert ["published", ()] in [notes for _, notes in every(left_behind, 1)]
    coarse = DepthFirst(1, fine=False)
    while True:
        _, notes = run(left_behind, coarse)
        assert () not in notes, "a search that is not fine takes what follows a section for a part of it"
        if not coarse.next_run():
            break


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (lambda lock, condition: lock.release(), "released, and nobody has it"),
        (lambda lock, condition: condition.wait(), "used by a, and lock 1 is nobody's"),
        (lambda lock, condition: condition.notify(), "used by a, and lock 1 is nobody's"),
    ],
)
def test_a_lock_that_is_not_held_cannot_be_used(misuse, says):
    def program(scheduler, sync, notes):
        lock = sync.lock()
        scheduler.spawn("a", lambda: misuse(lock, sync.condition(lock)))

    assert says in str(run(program, DepthFirst(1))[0].finding)


def test_an_error_of_the_choosing_is_the_callers_and_no_thread_of_the_run_sees_it():
    class Broken(DepthFirst):
        def choose(self, options, position, state):
            raise ValueError("cannot choose")

    scheduler = Scheduler(Broken(1))
    sync, seen = CooperativeSync(scheduler), []

    def swallows():
        try:
            with sync.lock():
                pass
        except Exception as error:
            seen.append(error)

    scheduler.spawn("a", swallows)
    scheduler.spawn("b", swallows)
    with pytest.raises(ValueError, match="cannot choose"):
        scheduler.run()
    assert seen == []
    assert all(thread.done for thread in scheduler.threads)


def test_where_only_waits_that_run_out_are_left_one_does_at_no_cost():
    def program(scheduler, sync, notes):
        for name in "ab":
            event = sync.event()
            scheduler.spawn(name, lambda event=event: notes.append(event.wait(timeout=1.0)))

    assert {tuple(notes) for _, notes in every(program, 0, timeouts=1)} == {(False, False)}


def test_the_same_seed_gives_the_same_schedules_and_another_seed_others():
    def schedules(seed):
        strategy, runs = RandomPriorities(seed), []
        for _ in range(20):
            scheduler, _ = run(lost_update, strategy)
            runs.append([(step.thread, step.what) for step in scheduler.steps])
            strategy.next_run()
        return runs

    assert schedules(1) == schedules(1) != schedules(2)


def test_a_saved_schedule_is_taken_step_by_step_and_what_does_not_fit_is_counted():
    lost = next(scheduler for scheduler, notes in every(lost_update, 1) if notes == [1, 1])
    turns = [(step.thread, step.how) for step in lost.steps]
    strategy = Saved(turns)
    scheduler, notes = run(lost_update, strategy)
    assert (notes, strategy.missed(scheduler.steps)) == ([1, 1], 0)
    assert [(step.thread, step.how) for step in scheduler.steps] == turns


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        (lambda turns: [("nobody", GOES)] * 3, 3),
        (lambda turns: [*turns[:-1], ("nobody", GOES)], 1),  # the last step of all is nobody's choice
        (lambda turns: [*turns, turns[-1], turns[-1]], 2),
        (lambda turns: turns[:-1], 0),  # mended code may go on where the finding was
    ],
)
def test_turns_of_a_saved_schedule_that_do_not_fit_are_counted_chosen_or_not(change, missed):
    saved = Saved(change([(step.thread, step.how) for step in run(lost_update, DepthFirst(0))[0].steps]))
    assert saved.missed(run(lost_update, saved)[0].steps) == missed


def test_random_changes_of_priority_fall_within_the_length_of_the_runs():
    strategy, points = RandomPriorities(0), []
    for _ in range(20):
        run(lost_update, strategy)
        strategy.next_run()
        points += sorted(strategy._points)
    choices = strategy._longest
    assert 0 < choices < 10
    assert set(points) == set(range(choices)), "each choice is one where the running thread may become the lowest"


def handed_over(scheduler, sync, notes):
    """One thread adds what it finds after an event, another sets it in between two sections, a third joins both."""
    lock, event, box = sync.lock(), sync.event(), [0]

    def add(value, after=None):
        if after is not None:
            after.wait()
        with lock:
            found = box[0]
        with lock:
            box[0] = found + value
            notes.append((value, found))

    def sets():
        add(1)
        event.set()
        add(2)

    threads = [sync.thread(lambda: add(4, event), "waits"), sync.thread(sets, "sets")]
    for thread in threads:
        thread.start()

    def joins():
        for thread in threads:
            scheduler.point("join", thread.name, lambda thread=thread: not thread.is_alive())
        with lock:
            notes.append(("sum", box[0]))

    scheduler.spawn("joins", joins)


@pytest.mark.parametrize("program", [lost_update, opposed, waiting, handed_over])
@pytest.mark.parametrize("bound", [0, 1, 2])
def test_what_is_not_gone_on_from_hides_no_outcome(program, bound, monkeypatch):
    def ends():
        return {
            (tuple(notes), scheduler.finding and scheduler.finding.kind) for scheduler, notes in every(program, bound)
        }

    found = ends()
    monkeypatch.setattr(DepthFirst, "_is_new", lambda *_: True)
    assert found == ends()


def test_a_state_seen_with_more_preemptions_left_is_not_gone_on_from_whoever_runs_there(monkeypatch):
    def three(scheduler, sync, notes):
        lost_update(scheduler, sync, notes)
        scheduler.spawn("c", lambda: scheduler.point("look", ""))

    def schedules():
        strategy, count = DepthFirst(2), 0
        while True:
            count += 1
            run(three, strategy)
            if not strategy.next_run():
                return count

    ends, few = {tuple(notes) for _, notes in every(three, 2)}, schedules()

    def is_new(self, state, options):
        runs = options[0].thread.number if any(option.takes_over for option in options) else None
        known = self._seen.setdefault((state, runs), {})
        return known.setdefault("left", -1) < self._left and known.update(left=self._left) is None

    monkeypatch.setattr(DepthFirst, "_is_new", is_new)  # whoever runs there tells states apart
    assert few < schedules()
    assert ends == {tuple(notes) for _, notes in every(three, 2)}


def test_a_state_is_gone_on_from_again_where_another_thread_runs_and_as_many_preemptions_are_left():
    def options(first, second):
        return [Option(first, GOES, 0), Option(second, GOES, 1, takes_over=True)]

    a, b = Thread("a", 0, daemon=False), Thread("b", 1, daemon=False)
    strategy = DepthFirst(1)
    assert strategy._is_new("state", options(a, b))
    assert not strategy._is_new("state", options(a, b))
    assert strategy._is_new("state", options(b, a))
    strategy._left = 0
    assert not strategy._is_new("state", options(b, a))
