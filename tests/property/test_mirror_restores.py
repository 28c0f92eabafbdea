"""What must hold of the host mirror when rows come back, and when memory is given back; every test fails without it."""

from __future__ import annotations

import pytest
import torch

from tests.mirror_support import DRAFT, ROWS, TARGETS, Steps, pages, rows
from tests.support import Background, held_at

LAYERS = (*TARGETS, DRAFT)


# ------------------------------------------------------------------ RestoreKeepsRows


@pytest.mark.parametrize("eager", [True, False])
def test_restored_rows_stay_when_rows_are_appended_behind_them(eager):
    owner = pages()
    with Steps(eager=eager) as steps:
        for layer in LAYERS:
            steps.mirror.import_rows(layer, owner.host_slots(range(6)), rows(9, range(6), layer, 0))
        steps.step(owner, 9, range(6, 8), owner.transfer(1, 1, restore=True), accepted=[1, 1])
        steps.mirror.settle()
        for layer in LAYERS:
            page = steps.mirror.resident[layer][owner.resident[1]]
            assert torch.equal(page[:2], rows(9, range(4, 6), layer, 0))
            assert torch.equal(page[2:], rows(9, range(6, 8), layer, 1))
            assert torch.equal(steps.host(layer, owner, range(6)), rows(9, range(6), layer, 0))
        assert steps.mirror.take_completed_transfers() == [1]


def test_a_restore_reads_rows_that_are_still_on_their_way_to_the_host():
    owner, other = pages(), pages(state=1, host=(5, 2, 7), resident=(1, 2, 5))
    with Steps(eager=False) as steps:
        steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])
        with steps.held_copies() as gate:
            steps.start(owner.transfer(1, 0))
            restore = Background(lambda: steps.start(other.transfer(2, 0, restore=True)))
            gate.wait_until_reached()
            assert restore.running
            gate.open()
            restore.result()
        assert torch.equal(steps.mirror.resident[0][1], rows(1, range(4), 0, 1))


def test_imported_rows_are_not_written_over_by_copies_that_were_on_their_way():
    owner = pages()
    with Steps(eager=False) as steps:
        steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])
        with steps.held_copies() as gate:
            steps.start(owner.transfer(1, 0))  # its request ends before it lands, and another one imports the block
            call = Background(lambda: steps.mirror.import_rows(0, owner.host_slots(range(4)), rows(2, range(4), 0, 0)))
            gate.wait_until_reached()
            assert call.running
            gate.open()
            call.result()
        steps.mirror.worker.dma_stream.synchronize()
        assert torch.equal(steps.host(0, owner, range(4)), rows(2, range(4), 0, 0))


# ------------------------------------------------------------------ the end


def test_memory_is_given_back_only_when_no_copy_runs():
    owner = pages()
    steps = Steps(eager=False)
    steps.mirror.initialize()
    steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])
    worker = steps.mirror.worker
    host = steps.mirror.host[0]
    with steps.held_copies() as gate:
        steps.start(owner.transfer(1, 0))
        gate.wait_until_reached()
        end = Background(steps.mirror.shutdown)
        assert end.running
        assert worker.cache_handles[0].runtime.host is not None
        gate.open()
        end.result()
    assert worker.cache_handles[0].runtime.host is None
    assert torch.equal(host[5 * ROWS : 6 * ROWS], rows(1, range(4), 0, 1))
    steps.mirror.shutdown()


@pytest.mark.forges("a page is handed to the copy stream that no step asked for")
def test_descriptors_are_not_reused_before_their_copy_ran():
    owner = pages()
    with Steps(eager=False) as steps:
        steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])
        worker = steps.mirror.worker
        with steps.held_copies() as gate:
            steps.start(owner.transfer(1, 0))
            gate.wait_until_reached()
            worker._enqueue_transfers([owner.transfer(2, 1)])
            first, second = [batch for _, batch in worker._pending_dma_descriptors]
            assert first is not second
            assert worker._dma_free_descriptors == []
            gate.open()
        worker.dma_stream.synchronize()
        steps.start(owner.transfer(3, 0))
        assert [batch for _, batch in worker._pending_dma_descriptors] == [first]
        assert worker._dma_free_descriptors == [second]


def test_a_held_forward_and_a_late_landing_do_not_change_what_lands():
    """Layers are handed on while the forward still runs: what lands is what each layer had written."""
    owner = pages()
    with Steps(draft=False, draft_tokens=0) as steps, held_at(steps.mirror.worker, "finish_forward") as gate:
        call = Background(lambda: steps.step(owner, 1, range(8)))
        gate.wait_until_reached()
        steps.mirror.worker.dma_stream.synchronize()
        assert torch.equal(steps.host(1, owner, range(8)), rows(1, range(8), 1, 1))
        gate.open()
        call.result()
