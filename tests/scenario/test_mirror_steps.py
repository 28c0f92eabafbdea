"""Whole runs of the sparse runner: after each step every host row is the device's row, and the one that it should be.

The runner compares every accepted row of every layer, on the host and on the device, with a run without any pages and
with the identity in the row (request, position, layer, step); rows that attention gets likewise. Each test says what
must have happened in its run, so that none of them passes by doing nothing.
"""

from __future__ import annotations

import random

import pytest
import torch

from palimpsest.runners.sparse import SparseReport, SparseRequest, SparseRunner, SparseSettings


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(97) for _ in range(length))


def request(number: int, length: int, answer: int, **options) -> SparseRequest:
    return SparseRequest(f"r{number}", prompt(length, number), answer, **options)


def serve(requests: list[SparseRequest], **options) -> SparseReport:
    report = SparseRunner(requests, SparseSettings(**options)).run()
    assert report.verdict.faults == []
    assert report.verdict.host_rows > 100
    assert report.verdict.device_rows > 100
    assert report.verdict.gathered_rows > 100
    assert report.counts.acknowledged == report.counts.transfers + report.counts.restores
    return report


EAGER = pytest.mark.parametrize("eager", [True, False], ids=["eager", "pages"])


@EAGER
def test_prefill_and_decode_mirror_every_row_of_every_layer(eager):
    report = serve([request(number, 9 + 3 * number, 8) for number in range(3)], eager=eager, draft_tokens=0)
    assert report.counts.rejected == 0
    assert report.verdict.clean_pages > 8


@EAGER
def test_rejected_drafts_never_reach_the_host_and_draft_layers_are_mirrored_after_the_forward(eager):
    report = serve([request(number, 10, 14) for number in range(3)], eager=eager, draft_tokens=2)
    assert report.counts.rejected > 10
    assert report.verdict.clean_pages > 8


@EAGER
def test_prefills_and_drafts_share_a_batch(eager):
    serve([request(number, 20, 12, arrival=1 + 2 * number) for number in range(4)], eager=eager, max_rows=16)


@EAGER
@pytest.mark.parametrize("draft_tokens", [0, 2])
def test_requests_that_are_preempted_go_on_from_their_host_rows(eager, draft_tokens):
    requests = [request(number, 17, 16, preempted_at=(15 + number, 22, 29)) for number in range(4)]
    report = serve(requests, eager=eager, draft_tokens=draft_tokens, num_resident_blocks=6)
    assert report.counts.preemptions > 8
    assert report.counts.restores > 4
    assert report.counts.spills > 0
    assert report.hot_misses > 50
    assert report.hot_hits > 50


@EAGER
def test_imported_rows_stay_when_the_restored_page_is_appended_to(eager):
    requests = [request(number, 11 + number, 12, imported=10, arrival=1 + number) for number in range(4)]
    report = serve(requests, eager=eager)
    assert report.counts.imports == 4
    assert report.counts.restores >= 4


def test_a_fork_begins_on_copies_of_host_blocks_whose_writes_have_landed():
    first = request(1, 14, 20)
    forks = [
        SparseRequest(f"fork{count}", (*first.prompt[:count], 5, 6), 8, arrival=3, forks=("r1", count))
        for count in (6, 9, 13)
    ]
    report = serve([first, *forks], num_host_blocks=40)
    assert report.counts.forks == 3
    assert report.counts.restores >= 3


def test_host_blocks_that_change_hands_leave_no_hot_rows_behind():
    requests = [request(number, 16, 10, arrival=1 + 3 * number) for number in range(8)]
    report = serve(requests, num_host_blocks=26, num_resident_blocks=6, draft_tokens=0)
    assert report.counts.recycled > 2 * 26
    assert report.hot_misses > 50


def test_idle_steps_acknowledge_what_is_on_its_way():
    report = serve([request(0, 16, 6), request(1, 16, 6, arrival=40)])
    assert report.counts.idle_steps > 10


@EAGER
def test_everything_at_once(eager):
    requests = [
        request(number, 6 + 5 * (number % 4), 8 + number, arrival=1 + number, imported=5 if number % 3 == 0 else 0)
        for number in range(9)
    ]
    report = serve(requests, eager=eager, num_resident_blocks=6, num_host_blocks=90)
    counts = report.counts
    assert min(counts.rejected, counts.preemptions, counts.spills, counts.restores, counts.imports) > 0


def test_a_request_that_cannot_fit_is_an_error_and_the_mirror_is_shut_down():
    runner = SparseRunner([request(0, 16, 4)], SparseSettings(num_host_blocks=3))
    with pytest.raises(RuntimeError, match="all 3 host blocks are held"):
        runner.run()
    assert runner.mirror._worker is None
