"""Which rows a step mirrors, and the addresses that copy them."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror import ops
from palimpsest.host_mirror.descriptors import DescriptorBatch, page_copies, reclaim, row_copies, split_at_seams, take
from palimpsest.host_mirror.rows import RowSet, RowSpans, flatten_row_mirrors, select_written_row_mirrors
from palimpsest.host_mirror.types import SparseKVRowMirror as Mirror


def test_mirrors_come_in_the_runners_order_and_requests_without_any_are_skipped():
    by_request = {"a": (Mirror((1,), 10, 1), Mirror((4,), 40, 2)), "b": (Mirror((7,), 70, 1),)}
    assert flatten_row_mirrors(by_request, ["b", "c", "a"]) == (*by_request["b"], *by_request["a"])


@st.composite
def envelopes(draw):
    """Candidates of two sources that do not overlap in either, in any order, and slots that were written."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    order = draw(st.permutations(range(len(lengths))))
    candidates, start = [], 0
    for length in lengths:
        start += draw(st.integers(0, 3))
        candidates.append(Mirror((1000 - start - length, start), 100 + 7 * start, length))
        start += length
    slots = draw(st.lists(st.integers(-1, start + 3), max_size=12))
    return [candidates[at] for at in order], np.array(slots, dtype=np.int64)


@settings(deadline=None)
@given(envelopes())
def test_exactly_the_written_rows_of_the_envelope_are_selected(case):
    candidates, slots = case
    selected = select_written_row_mirrors(candidates, slots, 1)

    def pairs(mirrors):
        return [
            (tuple(start + row for start in mirror.source_starts), mirror.destination_start + row)
            for mirror in mirrors
            for row in range(mirror.num_rows)
        ]

    written = set(slots.tolist())
    assert pairs(selected) == [pair for pair in pairs(candidates) if pair[0][1] in written]
    for mirror in selected:  # no span reaches over from one candidate to the next
        assert any(
            each.source_starts[1] <= mirror.source_starts[1]
            and mirror.source_starts[1] + mirror.num_rows <= each.source_starts[1] + each.num_rows
            for each in candidates
        )


def test_two_mirrors_of_one_source_row_are_an_error():
    with pytest.raises(BadMirrorInputError, match="source rows 3 to 6 and from 5 on overlap"):
        select_written_row_mirrors([Mirror((3,), 0, 4), Mirror((5,), 50, 1)], np.array([3]), 0)


@settings(deadline=None)
@given(envelopes(), st.integers(1, 4), st.booleans(), st.booleans())
def test_descriptors_copy_the_rows_and_nothing_else(case, page_rows, packed, cut):
    """Whether the pages follow one another in memory or not, and whether copies are cut at seams or not."""
    candidates, _ = case
    width, blocks = 3, 40 // page_rows + 2
    gap = 0 if packed else 5
    backing = torch.arange(blocks * (page_rows * width + gap), dtype=torch.float32)
    resident = backing.as_strided((blocks, page_rows, width), (page_rows * width + gap, width, 1))
    host = torch.full((400, width), -1.0)
    seams = host.data_ptr() + np.arange(0, 400, 8) * width * 4 if cut else None
    src, dst, sizes = row_copies(RowSet(candidates), 1, resident, host, seams)
    ops.copy_on_host(*(torch.from_numpy(array) for array in (src, dst, sizes)))
    want = torch.full((400, width), -1.0)
    for mirror in candidates:
        for row in range(mirror.num_rows):
            slot = mirror.source_starts[1] + row
            want[mirror.destination_start + row] = resident[slot // page_rows, slot % page_rows]
    assert torch.equal(host, want)
    if cut:
        assert not any(((seams > start) & (seams < start + size)).any() for start, size in zip(dst, sizes, strict=True))


def test_rows_that_go_on_from_one_another_are_one_copy():
    mirrors = [Mirror((4 * page,), 8 + 4 * page, 4) for page in range(16)]
    resident, host = torch.zeros(16, 4, 2), torch.zeros(80, 2)
    _, _, sizes = row_copies(RowSet(mirrors), 0, resident, host)
    assert sizes.tolist() == [64 * 2 * 4]


def test_whole_pages_are_copied_block_by_block():
    resident, host = torch.arange(24.0).view(3, 2, 4), torch.zeros(6, 4)
    copies = page_copies(np.array([2, 0]), np.array([0, 2]), resident, host)
    ops.copy_on_host(*(torch.from_numpy(array) for array in copies))
    assert torch.equal(host, torch.cat([resident[2], torch.zeros(2, 4), resident[0]]))


def test_a_copy_over_several_seams_is_cut_at_each():
    copies = RowSpans(np.array([100, 500]), np.array([10, 60]), np.array([30, 5]))
    cut = split_at_seams(copies, np.array([10, 20, 35, 40, 65]))
    assert [array.tolist() for array in cut] == [[100, 110, 125, 500], [10, 20, 35, 60], [10, 15, 5, 5]]


class Landed:
    def __init__(self, done):
        self.done = done

    def query(self):
        return self.done


def test_batches_come_back_in_the_order_of_the_stream_and_the_smallest_that_fits_is_taken():
    first, second, third = DescriptorBatch(64), DescriptorBatch(256), DescriptorBatch(128)
    pending, free = deque(), []
    pending.extend([(Landed(True), second), (Landed(False), first), (Landed(True), third)])
    reclaim(pending, free)
    assert free == [second]
    assert [batch for _, batch in pending] == [first, third]
    free.extend([first, third])
    assert take(free, 100) is third
    assert take(free, 300).capacity == 512
    assert free == [second, first]
