"""NoRecycledHotRow: what a selection keeps on the device is the row of the host block's present tenant."""

from __future__ import annotations

import numpy as np
import torch

from tests.mirror_support import DRAFT, TARGETS, Steps, pages, rows

# ------------------------------------------------------------------ NoRecycledHotRow


def select(steps, owner, positions):
    steps.mirror.begin_forward(steps.batch(owner, range(8, 9), deferred=True))
    steps.mirror.select(0, np.array([positions], dtype=np.int64))
    got = [steps.mirror.gather(layer)[0] for layer in TARGETS]
    steps.mirror.finish_forward()
    return got


def put(steps, owner, request, positions):
    for layer in (*TARGETS, DRAFT):
        steps.mirror.import_rows(layer, owner.host_slots(positions), rows(request, positions, layer, 0))


def test_no_hot_row_outlives_the_tenant_of_its_host_block():
    owner = pages()
    with Steps() as steps:
        steps.mirror.set_request(0, owner.host)
        put(steps, owner, 1, range(8))
        steps.start()
        assert torch.equal(select(steps, owner, [1, 6])[1], rows(1, range(1, 7, 5), 1, 0))
        put(steps, owner, 2, range(4))  # block 5 has another tenant, block 2 has not
        steps.start(source_block_ids=[5])
        got = select(steps, owner, [1, 6])
        for layer in TARGETS:
            assert torch.equal(got[layer], torch.cat([rows(2, range(1, 2), layer, 0), rows(1, range(6, 7), layer, 0)]))
        (group,) = {id(r.index_group): r.index_group for r in steps.mirror.worker.leader_runtimes[:1]}.values()
        assert group.swap_stats.tolist() == [1, 3]


def test_blocks_that_change_hands_in_idle_steps_are_forgotten_before_the_next_selection():
    owner = pages()
    with Steps() as steps:
        steps.mirror.set_request(0, owner.host)
        put(steps, owner, 1, range(4))
        steps.start()
        select(steps, owner, [0, 1])
        put(steps, owner, 2, range(4))
        steps.start(source_block_ids=[5])
        steps.start()
        assert torch.equal(select(steps, owner, [0, 1])[0], rows(2, range(2), 0, 0))


def test_a_row_that_was_written_again_is_fetched_again():
    owner = pages()
    with Steps() as steps:
        steps.mirror.set_request(0, owner.host)
        put(steps, owner, 1, range(4))
        steps.start()
        select(steps, owner, [0, 1])
        steps.step(owner, 1, range(1, 2), accepted=[1])
        steps.mirror.settle()
        steps.start()
        got = select(steps, owner, [0, 1])[0]
        assert torch.equal(got, torch.cat([rows(1, range(1), 0, 0), rows(1, range(1, 2), 0, 2)]))


def test_a_new_request_in_a_state_finds_no_hot_rows_of_the_one_before():
    first, second = pages(), pages(host=(5, 1, 3))
    with Steps() as steps:
        steps.mirror.set_request(0, first.host)
        put(steps, first, 1, range(4))
        steps.start()
        select(steps, first, [0, 1])
        put(steps, second, 2, range(4))
        steps.mirror.set_request(0, second.host)
        steps.start()
        assert torch.equal(select(steps, second, [0, 1])[0], rows(2, range(2), 0, 0))
