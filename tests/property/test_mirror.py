"""What must hold for the host mirror, a property of the design each; every test fails without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palimpsest.errors import (
    BadMirrorInputError,
    CopyFailedError,
    IncompleteMirrorError,
    MirrorTimeoutError,
    RankLostError,
)
from palimpsest.host_mirror import HostMirror, LayerSpec, ops
from palimpsest.host_mirror.row_mirrors import LAYERS_TOGETHER
from palimpsest.host_mirror.streams import HostStream
from palimpsest.kv_cache import KVCacheBlockCopy
from tests.mirror_support import DRAFT, ROWS, TARGETS, WIDTH, Steps, config, pages, rows, thread_ranks
from tests.support import HASTY_S, PATIENT_S, Background

LAYERS = (*TARGETS, DRAFT)


def assert_host(steps, owner, request, positions, step):
    for layer in LAYERS:
        assert torch.equal(steps.host(layer, owner, positions), rows(request, positions, layer, step)), layer


# ------------------------------------------------------------------ OneHostWriter


def test_one_rank_writes_the_pool_and_all_read_it():
    made = [Steps(HostMirror(config(engine_id="one-writer"), ranks=ranks)) for ranks in thread_ranks(2)]
    owner = pages()

    def serve(steps, request):
        with steps:
            steps.step(owner, request, range(6))
            steps.mirror.settle()
            steps.start()  # all ranks begin the next step together
            return [steps.host(layer, owner, range(6)).clone() for layer in LAYERS], steps.mirror.worker.is_host_writer

    # the rank that does not write has rows of its own on its device: they must not reach the pool
    calls = [
        Background(lambda steps=steps, request=request: serve(steps, request)) for request, steps in enumerate(made)
    ]
    (first, writes), (second, reads_only) = calls[0].result(), calls[1].result()
    assert (writes, reads_only) == (True, False)
    for layer in LAYERS:
        assert torch.equal(first[layer], rows(0, range(6), layer, 1))
        assert torch.equal(second[layer], first[layer])


def test_only_the_writer_acknowledges_transfers_and_copies_host_blocks():
    made = [Steps(HostMirror(config(engine_id="one-copier"), ranks=ranks)) for ranks in thread_ranks(2)]
    owner = pages()
    copied = []

    def serve(steps):
        with steps:
            steps.step(owner, 0, range(4), owner.transfer(1, 0, after_forward=True))
            steps.start(host_block_copies=[KVCacheBlockCopy(5, 6)])
            steps.mirror.worker.dma_stream.synchronize()
            copied.append(steps.mirror.host[0][6 * ROWS : 7 * ROWS].clone())
            steps.mirror.worker.dma_stream.synchronize()
            return steps.mirror.take_completed_transfers()

    calls = [Background(lambda steps=steps: serve(steps)) for steps in made]
    assert [call.result() for call in calls] == [[1], []]
    assert all(torch.equal(found, rows(0, range(4), 0, 1)) for found in copied)


def test_a_rank_that_does_not_come_is_told_within_the_bound_and_memory_is_given_back():
    first, _ = thread_ranks(2, timeout_s=HASTY_S)
    mirror = HostMirror(config(engine_id="lost-rank"), ranks=first)
    with pytest.raises(RankLostError, match="rank 0 of 2"):
        mirror.initialize()
    mirror.shutdown()
    with pytest.raises(BadMirrorInputError, match="not initialized"):
        _ = mirror.worker


# ------------------------------------------------------------------ HostCopyAfterWrites


def test_a_host_block_is_copied_after_the_writes_queued_before_it():
    owner = pages()
    with Steps(eager=False) as steps:
        steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])  # on the device only
        with steps.held_copies() as gate:
            steps.start(owner.transfer(1, 0))
            step = Background(lambda: steps.start(host_block_copies=[KVCacheBlockCopy(5, 6)]))
            gate.wait_until_reached()
            assert not steps.mirror.host[0].any()
            assert step.running
            gate.open()
            step.result()
        assert torch.equal(steps.mirror.host[0][6 * ROWS : 7 * ROWS], rows(1, range(4), 0, 1))
        assert steps.mirror.worker.take_completed_host_copies() == [6]


@pytest.mark.forges("its forward stream is queued as a device's is, and the trace says that the caller has waited")
def test_a_host_block_is_copied_after_writes_that_lie_before_a_step_without_rows():
    """On a device nobody has waited for those writes yet: only the idle step's own event stands for them."""
    owner, forward = pages(), HostStream("forward", timeout_s=PATIENT_S)
    with Steps(draft=False, draft_tokens=0, timeout_s=HASTY_S) as steps:
        steps.mirror.worker._current_stream = lambda: forward
        with steps.held_copies() as gate:
            steps.step(owner, 1, range(4))
            steps.start()
            gate.wait_until_reached()
            with pytest.raises(MirrorTimeoutError):
                steps.start(host_block_copies=[KVCacheBlockCopy(5, 6)])
        steps.mirror.worker.dma_stream.synchronize()
        assert not steps.mirror.host[0][6 * ROWS : 7 * ROWS].any()
    forward.close()


# ------------------------------------------------------------------ CleanMeansDurable


@pytest.mark.parametrize("eager", [True, False])
def test_a_page_is_not_reported_before_the_draft_layers_rows_are_there(eager):
    owner = pages()
    with Steps(eager=eager) as steps:
        steps.start(owner.transfer(1, 0, after_forward=True), mirrors={"r": owner.mirrors(range(4))})
        steps.target(owner, 1, range(4))
        steps.mirror.finish_forward()
        steps.mirror.settle()
        assert steps.mirror.take_completed_transfers() == []
        steps.drafts(owner, 1, range(4))
        steps.mirror.finish_draft()
        steps.mirror.worker.dma_stream.synchronize()
        assert steps.mirror.take_completed_transfers() == [1]
        assert_host(steps, owner, 1, range(4), 1)


@pytest.mark.parametrize("eager", [True, False])
def test_a_page_is_not_reported_while_its_copy_is_on_its_way_and_is_on_an_idle_step(eager):
    owner = pages()
    with Steps(eager=eager) as steps:
        steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])
        steps.mirror.settle()
        with steps.held_copies() as gate:
            steps.start(owner.transfer(1, 0))
            gate.wait_until_reached()
            assert steps.mirror.take_completed_transfers() == []
            gate.open()
            steps.mirror.worker.dma_stream.synchronize()
        steps.start()
        assert steps.mirror.take_completed_transfers() == [1]
        assert steps.mirror.take_completed_transfers() == []
        assert_host(steps, owner, 1, range(4), 1)


def test_a_step_whose_draft_phase_is_missing_is_an_error_and_not_a_clean_page():
    owner = pages()
    with Steps() as steps:
        steps.start(owner.transfer(1, 0, after_forward=True), mirrors={"r": owner.mirrors(range(4))})
        steps.target(owner, 1, range(4))
        steps.mirror.finish_forward()
        with pytest.raises(IncompleteMirrorError, match="draft layers of the last one"):
            steps.start()
        assert steps.mirror.take_completed_transfers() == []


def test_a_copy_that_failed_is_never_reported_and_every_later_wait_raises(monkeypatch):
    owner = pages()
    steps = Steps()
    steps.mirror.initialize()

    def failing(*_):
        raise OSError("the bus is gone")

    monkeypatch.setattr(ops, "copy_on_host", failing)
    with pytest.raises(CopyFailedError, match="the bus is gone"):
        steps.step(owner, 1, range(4), owner.transfer(1, 0, after_forward=True))
    with pytest.raises(CopyFailedError, match="the bus is gone"):
        steps.mirror.settle()
    with pytest.raises(CopyFailedError):
        steps.mirror.shutdown()
    assert steps.mirror._worker is None


# ------------------------------------------------------------------ each layer once


def test_a_layer_that_does_not_report_is_an_error():
    owner = pages()
    with Steps(draft=False, draft_tokens=0) as steps:
        steps.start(mirrors={"r": owner.mirrors(range(4))})
        steps.mirror.begin_forward(steps.batch(owner, range(4), deferred=False))
        steps.mirror.write(0, rows(1, range(4), 0, 1))
        with pytest.raises(IncompleteMirrorError, match=r"layers \[1\] of \[0, 1\]"):
            steps.mirror.finish_forward()


def test_no_layer_is_copied_twice_and_none_is_left_out(monkeypatch):
    owner, copied = pages(), []
    with Steps() as steps:
        copy = ops.copy_on_host
        monkeypatch.setattr(ops, "copy_on_host", lambda *pieces: (copied.extend(pieces[1].tolist()), copy(*pieces)))
        steps.step(owner, 1, range(6))
        steps.mirror.settle()
        assert len(copied) == len(set(copied))
        assert_host(steps, owner, 1, range(6), 1)


def test_an_empty_step_does_not_mirror_the_rows_of_the_last_one_again():
    owner = pages()
    with Steps() as steps:
        steps.step(owner, 1, range(4))
        steps.mirror.settle()
        for cache in steps.mirror.resident:
            cache.fill_(-1.0)  # the page has another tenant by now
        steps.start()
        steps.mirror.finish_forward()
        steps.mirror.finish_draft()
        steps.mirror.settle()
        assert_host(steps, owner, 1, range(4), 1)


# ------------------------------------------------------------------ AcceptedRowsOnly


def test_rejected_rows_stay_on_the_device():
    owner = pages()
    with Steps() as steps:
        steps.step(owner, 1, range(2, 7), accepted=[1, 1, 1, 0, 0])
        steps.mirror.settle()
        assert_host(steps, owner, 1, range(2, 5), 1)
        for layer in LAYERS:
            assert not steps.host(layer, owner, range(5, 7)).any()
        steps.step(owner, 1, range(5, 8), accepted=[1, 1, 1])
        steps.mirror.settle()
        assert_host(steps, owner, 1, range(5, 8), 2)


def test_rows_cannot_be_rejected_once_they_were_handed_on_layer_by_layer():
    owner = pages()
    with Steps() as steps:
        steps.start(mirrors={"r": owner.mirrors(range(4))})
        steps.target(owner, 1, range(4))
        with pytest.raises(BadMirrorInputError, match="deferred batches"):
            steps.mirror.finish_forward(np.array([1, 1, 0, 0]))


def test_layers_of_one_source_go_to_the_host_while_later_ones_are_still_to_come():
    owner, deep = pages(), range(2 * LAYERS_TOGETHER + 2)
    layers = tuple(LayerSpec(f"layers.{n}", WIDTH, leader=n == 0) for n in deep)
    with Steps(layers=layers) as steps:
        steps.start(mirrors={"r": owner.mirrors(range(4))})
        steps.mirror.begin_forward(steps.batch(owner, range(4), deferred=False))
        for layer in deep[:LAYERS_TOGETHER]:
            steps.mirror.write(layer, rows(1, range(4), layer, 1))
        steps.mirror.settle()
        for layer in deep[:LAYERS_TOGETHER]:
            assert torch.equal(steps.host(layer, owner, range(4)), rows(1, range(4), layer, 1))
        waits, *others = deep[LAYERS_TOGETHER:]
        steps.mirror.write(waits, rows(1, range(4), waits, 1))
        steps.mirror.settle()
        assert not steps.host(waits, owner, range(4)).any()
        for layer in others:
            steps.mirror.write(layer, rows(1, range(4), layer, 1))
        steps.mirror.finish_forward()
        steps.mirror.settle()
        for layer in deep:
            assert torch.equal(steps.host(layer, owner, range(4)), rows(1, range(4), layer, 1))


def test_towards_the_end_of_a_forward_fewer_layers_go_together_and_the_last_one_alone():
    owner, deep = pages(), range(20)
    layers = tuple(LayerSpec(f"layers.{n}", WIDTH, leader=n == 0) for n in deep)
    with Steps(layers=layers) as steps:
        steps.start(mirrors={"r": owner.mirrors(range(4))})
        steps.mirror.begin_forward(steps.batch(owner, range(4), deferred=False))
        handed_on = []
        for layer in deep:
            before = len(steps.mirror.worker._submitted_mirror_layers)
            steps.mirror.write(layer, rows(1, range(4), layer, 1))
            handed_on.append(len(steps.mirror.worker._submitted_mirror_layers) - before)
        steps.mirror.finish_forward()
    assert [count for count in handed_on if count] == [4, 4, 4, 3, 2, 1, 1, 1]
    assert handed_on[-1] == 1


# ------------------------------------------------------------------ EventNotReused


def test_a_step_records_another_event_than_the_one_that_it_waits_for():
    owner = pages()
    with Steps(eager=False) as steps:
        steps.step(owner, 1, range(4), accepted=[1, 1, 1, 1])
        with steps.held_copies() as gate:
            steps.start(owner.transfer(1, 0))
            first = steps.mirror.worker.host_write_event
            gate.wait_until_reached()
            assert not first.query()
            step = Background(steps.start)
            assert step.running
            gate.open()
            step.result()
        assert steps.mirror.worker.host_write_event is not first
        assert first.query()


def test_what_comes_next_on_the_device_waits_for_the_copies_of_its_rows():
    """Else the next forward could write over rows that are on their way."""
    owner = pages()
    with Steps(draft=False, draft_tokens=0) as steps:
        steps.start(mirrors={"r": owner.mirrors(range(4))})
        with steps.held_copies() as gate:
            steps.target(owner, 1, range(4))
            finish = Background(steps.mirror.finish_forward)
            gate.wait_until_reached()
            assert finish.running
            assert not steps.mirror.host[0].any()
            gate.open()
            finish.result()
        assert torch.equal(steps.host(0, owner, range(4)), rows(1, range(4), 0, 1))


def test_a_copy_that_does_not_land_ends_the_wait_with_an_error_that_names_it():
    owner = pages()
    steps = Steps(draft=False, draft_tokens=0, timeout_s=HASTY_S)
    steps.mirror.initialize()
    steps.start(mirrors={"r": owner.mirrors(range(4))})
    with steps.held_copies():
        steps.target(owner, 1, range(4))
        with pytest.raises(MirrorTimeoutError, match=r"waited 0\.05 s for stream 'palimpsest-mirror-copy'"):
            steps.mirror.finish_forward()
    steps.mirror.shutdown()
