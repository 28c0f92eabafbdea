"""Reused output buffers: a block is given out again only when no tensor stands on it."""

from __future__ import annotations

import gc
import threading

import torch

from palimpsest.prefix_cache import buffers
from palimpsest.prefix_cache.buffers import OutputBuffers

SHAPE = (1024, 256)  # 1 MiB of float32


def test_a_block_is_not_reused_while_any_view_of_its_tensor_lives():
    pool = OutputBuffers()
    first = pool.empty(SHAPE, torch.float32).fill_(1.0)
    view = first[3:5].view(torch.int32)
    del first
    gc.collect()
    second = pool.empty(SHAPE, torch.float32).fill_(2.0)
    assert (view.view(torch.float32) == 1.0).all()
    assert second.data_ptr() + second.nbytes <= view.data_ptr() or view.data_ptr() < second.data_ptr()
    assert pool.idle_bytes() == 0


def test_a_block_is_reused_once_its_last_tensor_is_gone_also_for_another_dtype_of_that_size():
    pool = OutputBuffers()
    first = pool.empty(SHAPE, torch.float32)
    where = first.data_ptr()
    del first
    gc.collect()
    assert pool.idle_bytes() >= 1 << 20
    second = pool.empty((1024, 512), torch.bfloat16)
    assert second.data_ptr() == where
    assert pool.idle_bytes() == 0


def test_a_clone_has_the_rows_and_memory_of_its_own():
    pool = OutputBuffers()
    rows = torch.arange(1024 * 256, dtype=torch.float32).reshape(SHAPE)
    copy = pool.clone(rows)
    rows.zero_()
    assert torch.equal(copy.flatten(), torch.arange(1024 * 256, dtype=torch.float32))


def test_what_is_kept_idle_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "_IDLE_BYTES", 2500 << 10)
    pool = OutputBuffers()
    held = [pool.empty(SHAPE, torch.float32) for _ in range(5)]
    del held
    gc.collect()
    assert 0 < pool.idle_bytes() <= 2500 << 10


def test_tensors_that_die_on_other_threads_give_their_blocks_back():
    pool = OutputBuffers()
    held = [[pool.empty(SHAPE, torch.float32)] for _ in range(4)]
    threads = [threading.Thread(target=box.clear) for box in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert pool.idle_bytes() == 4 * (1 << 20)
    assert not pool._leases


def test_small_buffers_are_ordinary_memory():
    pool = OutputBuffers()
    assert pool.empty((4, 4), torch.float32).shape == (4, 4)
    assert not pool._leases
