"""The log: what was realised at the start, and who waits for whom long before the bound raises."""

from __future__ import annotations

import logging
import re
from concurrent.futures import Future

import pytest
import torch

from palimpsest.errors import StagingTimeoutError
from palimpsest.prefix_cache import slow_waits
from palimpsest.prefix_cache.copies import LandedEvent
from palimpsest.prefix_cache.interface import HIDDEN_KEY, KeyLayout
from palimpsest.prefix_cache.slow_waits import SlowWaits
from palimpsest.sync import STANDARD, Deadline
from tests.support import Background, held_at, hit, more, prefill

LOGGER = "palimpsest.prefix_cache"

#: a bound that runs out, and not before the warning on a busy machine
BOUND_S = 1.0


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_one_line_at_the_start_says_what_was_realised(script, caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        script(layouts={HIDDEN_KEY: KeyLayout(torch.float32, (4,))}, staging_depth=2, staging_capacity_tokens=16)
    (line,) = [record.getMessage() for record in caplog.records]
    for part in ("16 blocks of 4 slots", "staging pages of 16 tokens", "eager", "float32[4]", "GiB of host memory",
                 "row checks off", "no flight recorder"):  # fmt: skip
        assert part in line


def test_a_save_that_waits_long_for_a_page_says_who_holds_it_and_raises_at_its_bound(script, caplog):
    s = script(staging_depth=1, slow_wait_s=0.01, staging_claim_timeout_s=BOUND_S)
    step_id = s.step({"a": prefill([0], 4)})
    s.begin({"a": more([0, 1], 4)})
    with caplog.at_level(logging.WARNING, LOGGER), pytest.raises(StagingTimeoutError):
        s.save()
    (message,) = warnings(caplog)
    assert message == (
        "prefix cache: waiting for more than 0.01 s: a save needs a staging page: page 0 held by step 1; it raises "
        "after 1 s"
    )
    s.cache.discard_step(step_id)


def test_a_page_that_comes_free_after_the_warning_is_taken(script, caplog):
    s = script(staging_depth=1, slow_wait_s=0.01)
    first = s.step({"a": prefill([0], 4)})
    s.begin({"a": more([0, 1], 4)})
    with caplog.at_level(logging.WARNING, LOGGER), held_at(s.cache._controller.slow, "warn", after=True) as gate:
        save = Background(s.save)
        gate.wait_until_reached()
        s.cache.discard_step(first)  # not under the page lock: it may be released while the log is written
        gate.open()
        s.cache.discard_step(save.result())
    assert len(warnings(caplog)) == 1


def test_a_save_that_waits_long_for_a_write_names_task_state_and_who_writes(script, caplog):
    s = script(eager=False, slow_wait_s=0.01)
    with caplog.at_level(logging.WARNING, LOGGER), held_at(s.cache._pool, "write") as write:
        first = s.step({"a": prefill([0], 4)})
        write.wait_until_reached()
        s.begin({"a": more([0, 1], 4)})
        with held_at(s.cache._controller.slow, "warn", after=True) as warned:
            save = Background(s.save)
            warned.wait_until_reached()
            warned.open()
        write.open()
        for step_id in (first, save.result()):
            s.cache.discard_step(step_id)
    (message,) = warnings(caplog)
    assert "task 1 (join_next_step) has not reached done: state=HOST_READY, request 'a'; the committer runs" in message


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait of more than 10 ms is told: on a busy machine others may be before the one that is looked for."""
    monkeypatch.setattr(slow_waits, "EVERY_S", 0.0)


@pytest.mark.usefixtures("unlimited")
def test_a_builder_that_waits_long_for_a_device_copy_says_which_and_who_holds_its_page(script, caplog, monkeypatch):
    s = script(slow_wait_s=0.01, staging_claim_timeout_s=BOUND_S)
    event, slow = LateEvent(), SlowWaits(0.01)
    landed, copies = LandedEvent(event, BOUND_S, slow=slow), s.cache._copies.freeze_into

    def freeze_into(*args):
        copies(*args)
        return landed

    monkeypatch.setattr(s.cache._copies, "freeze_into", freeze_into)
    monkeypatch.setattr(s.cache._controller, "dispatch", lambda tasks: None)
    step_id = s.step({"a": prefill([0], 4)})
    with caplog.at_level(logging.WARNING, LOGGER), held_at(slow, "warn", after=True) as gate:
        outputs = Background(lambda: s.cache.materialize(step_id, ["a"]), name="builder")
        gate.wait_until_reached()
        event.landed = True
        gate.open()
        outputs.result()
    says = "0.01 s: builder waits for the copies of step 1 to page 0, held by step 1, task 1; it raises"
    assert any(says in message for message in warnings(caplog))


class LateEvent:
    """A device event that is done when it is told so."""

    landed = False

    def query(self) -> bool:
        return self.landed


@pytest.mark.usefixtures("unlimited")
def test_a_builder_that_waits_long_for_a_prefetch_names_the_read_and_who_has_it(script, caplog):
    s = script(eager=False, slow_wait_s=0.01)
    s.run({"a": prefill([0], 4)})
    s.settle()
    with caplog.at_level(logging.WARNING, LOGGER), held_at(s.cache._pool, "read_into") as gate:
        step_id = s.step({"b": hit([0, 1], 4, 1)})
        gate.wait_until_reached()
        with held_at(s.cache._controller.slow, "warn", after=True) as warned:
            outputs = Background(lambda: s.cache.materialize(step_id, ["b"]), name="builder")
            warned.wait_until_reached()
            warned.open()
            gate.open()
            outputs.result()
    says = (
        rf"step {step_id} waits for read \d+ \(key '__hidden_states__' of request 'b'\); the prefetch thread copies it"
    )
    assert any(re.search(says + "; it raises", message) for message in warnings(caplog))


@pytest.mark.usefixtures("unlimited")
def test_a_shutdown_that_waits_long_names_the_thread_and_what_it_writes(script, caplog):
    s = script(eager=False, slow_wait_s=0.01)
    controller = s.cache._controller
    with caplog.at_level(logging.WARNING, LOGGER), held_at(s.cache._pool, "write") as write:
        s.run({"a": prefill([0], 4)})
        write.wait_until_reached()
        with held_at(controller.slow, "warn", after=True) as warned:
            end = Background(s.cache.shutdown)
            warned.wait_until_reached()
            warned.open()
            write.open()
            end.result()
    says = "shutdown waits for the committer: task 1 (join_next_step) of request 'a', state=HOST_READY"
    assert any(says in message for message in warnings(caplog))


def test_a_result_that_comes_while_the_bound_runs_out_is_taken():
    class Just(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if timeout is None:
                return 7
            self.set_result(7)
            raise TimeoutError

    for after_s in (0.0, 1.0):
        assert SlowWaits(after_s).result(Just(), Deadline(STANDARD, 5.0), lambda: "?") == 7


def test_a_wait_that_ends_in_time_says_nothing(script, caplog):
    s = script(eager=False, slow_wait_s=15.0)
    with caplog.at_level(logging.WARNING, LOGGER):
        s.run({"a": prefill([0], 4)})
        s.run({"a": more([0, 1], 4)})
    assert warnings(caplog) == []


@pytest.mark.parametrize("after_s", [0.0, 99.0])
def test_a_wait_is_one_wait_where_no_warning_can_come_before_its_end(after_s):
    waited = []
    assert not SlowWaits(after_s).within(Deadline(STANDARD, 5.0), waited.append, lambda: "?")
    assert len(waited) == 1
