"""Large copies that several threads share: each row arrives once, whatever the pieces."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.bulk import BulkCopier
from palimpsest.prefix_cache.interface import PrefixCacheConfig
from palimpsest.sync import STANDARD

ROW = 8 << 10  # bytes


def rows_of(tag: int, count: int) -> np.ndarray:
    """Rows that carry their tag and position in every element."""
    return np.repeat(np.arange(count, dtype=np.int64)[:, None] + tag * 1_000_000, ROW // 8, axis=1)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_row_of_every_copy_arrives_where_it_was_sent(threads):
    copier = BulkCopier(STANDARD, threads)
    sources = [rows_of(tag, count) for tag, count in enumerate([1, 700, 129, 3])]
    targets = [np.full_like(source, -1) for source in sources]
    copier.copy(zip(targets, sources, strict=True))
    copier.close()
    assert all(np.array_equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_only_large_copies_are_shared_out_and_none_where_there_is_one_thread():
    assert BulkCopier(STANDARD, 2).takes(4 << 20)
    assert not BulkCopier(STANDARD, 2).takes((4 << 20) - 1)
    assert not BulkCopier(STANDARD, 1).takes(1 << 30)


def test_a_closed_copier_ends_its_threads_and_its_callers_copy_alone():
    copier = BulkCopier(STANDARD, 4)
    source = rows_of(1, 600)
    copier.copy([(np.empty_like(source), source)])
    copier.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("palimpsest-copier")]
    assert not copier.takes(1 << 30)
    target = np.empty_like(source)
    copier.copy([(target, source)])
    assert np.array_equal(target, source)


def test_an_error_in_a_shared_copy_reaches_the_caller():
    copier = BulkCopier(STANDARD, 2)
    source, read_only = rows_of(1, 600), rows_of(2, 600)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copier.copy([(read_only, source)])
    copier.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_pool_reads_large_runs_with_several_threads_as_with_one(monkeypatch, dtype):
    monkeypatch.setattr("palimpsest.prefix_cache.bulk._usable_cores", lambda: 8)
    shared = PrefixBlockPool(PrefixCacheConfig(64, 16))
    shared.ensure_key("k", dtype, 4096)
    slots = np.concatenate([np.arange(512, 1024), np.arange(0, 256), np.arange(300, 500)])
    values = torch.arange(slots.size, dtype=torch.int64)[:, None].expand(-1, 4096).to(dtype)
    shared.write("k", torch.from_numpy(slots), values)
    out = torch.empty((slots.size, 4096), dtype=dtype)
    assert shared._bulk.takes(out.nbytes)
    shared.read_into("k", slots, out)
    assert torch.equal(out, values)
    shared.close()
