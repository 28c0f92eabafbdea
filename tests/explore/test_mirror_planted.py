"""Slips of a change to the host mirror, planted one at a time: exploring finds each, and names what it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from palimpsest.host_mirror.hot_rows import HotRowTable
from palimpsest.host_mirror.streams import CallerStream
from palimpsest.host_mirror.worker import HostMirrorWorker as Worker
from palimpsest_model_check.explore.explore import explore
from palimpsest_model_check.explore.mirror_scenarios import MIRROR_SCENARIOS
from palimpsest_model_check.explore.saved import Schedule, replay
from palimpsest_model_check.explore.scenarios import SCENARIOS

Patch = pytest.MonkeyPatch
PLANTS: dict[str, tuple[Callable[[Patch], None], str, str]] = {}


def plant(scenario: str, breaks: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Registers a slip, the scenario that shows it, and the property that tells."""

    def register(slip: Callable[[Patch], None]) -> Callable[[Patch], None]:
        PLANTS[slip.__name__] = slip, scenario, breaks
        return slip

    return register


@plant("two-ranks", "OneHostWriter")
def every_rank_mirrors_its_rows(patch):
    patch.setattr(Worker, "_writes_host", lambda self: self._row_mirror_num_rows > 0)


@plant("copied-while-moving", "HostCopyAfterWrites")
def host_blocks_are_copied_before_the_last_writes_have_landed(patch):
    patch.setattr(CallerStream, "wait_event", lambda self, event: None)
    real = Worker._copy_host_blocks
    patch.setattr(Worker, "_copy_host_blocks", lambda self, copies, event: real(self, copies, None))


@plant("spill-and-draft-rows", "CleanMeansDurable")
def the_step_ends_before_its_draft_layers(patch):
    def finish_forward(self):
        drafts = bool(self._draft_layers) and self._row_mirror_num_rows > 0
        self._finish_target()
        self._order_next_forward()
        self._end_step()
        self._draft_mirror_pending = drafts

    patch.setattr(Worker, "finish_forward", finish_forward)


@plant("shutdown-while-moving", "CleanMeansDurable")
def transfers_are_acknowledged_when_they_are_queued(patch):
    def take(self):
        done = list(self._enqueued_transfer_ids)
        self._trace.emit("take_completed_transfers", {}, {"taken": done})
        return done

    real = Worker.shutdown

    def shutdown(self):
        take(self)
        real(self)

    patch.setattr(Worker, "shutdown", shutdown)


@plant("two-ranks", "EventNotReused")
def ranks_do_not_meet(patch):
    def meet(self, previous):
        previous.synchronize()
        self._turn_events()
        self._trace.emit("meet", {}, {"next": self._next_host_write_event})

    patch.setattr(Worker, "_meet", meet)


@plant("restored-and-appended", "RestoreKeepsRows")
def pages_are_restored_behind_the_forward(patch):
    restore, finish = Worker._restore_pages, Worker._finish_target

    def later(self, transfers):
        self.late = transfers
        self._record_transfer_completion(transfers, stream=self._current_stream())

    def restored_late(self):
        restore(self, getattr(self, "late", ()))
        finish(self)

    patch.setattr(Worker, "_restore_pages", later)
    patch.setattr(Worker, "_finish_target", restored_late)


@plant("hot-row-of-a-recycled-block", "NoRecycledHotRow")
def hot_rows_of_recycled_blocks_are_kept(patch):
    patch.setattr(HotRowTable, "forget_blocks", lambda self, blocks, rows: None)


@plant("drafts-are-rejected", "AcceptedRowsOnly")
def rejected_rows_are_mirrored(patch):
    patch.setattr(Worker, "_refine_row_mirrors", lambda self: None)


@plant("drafts-are-rejected", "EveryRowMirrored")
def draft_layers_are_left_out(patch):
    real = Worker._is_active
    patch.setattr(Worker, "_is_active", lambda self, layer: real(self, layer) and layer not in self._draft_layers)


@plant("shutdown-while-moving", "RegisteredWhileUsed")
def memory_is_given_back_while_a_copy_runs(patch):
    patch.setattr(Worker, "_settle", lambda self: None)


@plant("spill-and-draft-rows", "MirroredOnce")
def layers_are_handed_on_again_at_the_end_of_the_phase(patch):
    real = Worker._finish_mirror_phase

    def twice(self, ready):
        self._per_layer_mirrored.clear()
        real(self, ready)

    patch.setattr(Worker, "_finish_mirror_phase", twice)


@pytest.mark.parametrize("name", PLANTS)
def test_the_slip_is_found_within_the_bound_and_found_again(name, monkeypatch):
    slip, scenario, breaks = PLANTS[name]
    with monkeypatch.context() as patch:
        slip(patch)
        outcome = explore(SCENARIOS[scenario], bound=1, schedules=100)
        assert outcome.found is not None, f"not found in {outcome.schedules} schedules"
        finding = outcome.found.finding
        assert finding is not None
        assert breaks in (finding.kind, *finding.properties), str(finding)
        schedule = Schedule.of(outcome.found)
        again, missed = replay(scenario, schedule.turns)
        assert (again.finding, missed) == (finding, 0)
    sound, _ = replay(scenario, schedule.turns)
    assert sound.finding is None, str(sound.finding)


@pytest.mark.parametrize("name", MIRROR_SCENARIOS)
def test_nothing_is_found_in_the_mirror_as_it_is(name):
    """Every schedule with one preemption; of the longest scenario, which has 519, the first ones."""
    outcome = explore(SCENARIOS[name], bound=1, schedules=100)
    assert outcome.ok, str(outcome.found and outcome.found.finding)
    assert outcome.exhausted or name == "two-ranks-and-a-copy"
