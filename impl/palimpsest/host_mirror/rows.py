"""Which rows a step mirrors: in the runner's order, only those that were written, as few spans as there can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from palimpsest.errors import BadMirrorInputError
from palimpsest.host_mirror.types import SparseKVRowMirror

IntArray = npt.NDArray[np.int64]


class RowSpans(NamedTuple):
    """Spans of consecutive rows of one source, an array each: first resident slot, first host slot, length."""

    source: IntArray
    destination: IntArray
    rows: IntArray


def flatten_row_mirrors(
    by_request: Mapping[str, Sequence[SparseKVRowMirror]], request_ids: Iterable[str]
) -> tuple[SparseKVRowMirror, ...]:
    """The row mirrors of `request_ids`, in that order; a request without any is skipped."""
    return tuple(mirror for request in request_ids for mirror in by_request.get(request, ()))


def select_written_row_mirrors(
    candidates: Sequence[SparseKVRowMirror], source_slots: IntArray, source_index: int
) -> tuple[SparseKVRowMirror, ...]:
    """The parts of `candidates` whose rows are among `source_slots`, the slots of one source that were written.

    A scheduler that plans ahead names all rows that a step *may* write. Slots below 0 are rows that were not
    written, or were rejected; slots of no candidate have no host row. Spans stay in the order of the candidates
    and never reach over from one to the next, so that no span crosses a page that the scheduler kept apart.
    Raises `BadMirrorInputError` when two candidates claim one source row.
    """
    if not candidates:
        return ()
    starts = np.array([mirror.source_starts[source_index] for mirror in candidates], dtype=np.int64)
    counts = np.array([mirror.num_rows for mirror in candidates], dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    _refuse_overlap(starts[order], counts[order])
    slots = np.unique(source_slots[source_slots >= 0])
    place = np.searchsorted(starts[order], slots, side="right") - 1
    slots, owner = slots[place >= 0], order[place[place >= 0]]
    inside = slots < starts[owner] + counts[owner]
    slots, owner = slots[inside], owner[inside]
    by_candidate = np.argsort(owner, kind="stable")
    return _cut_runs(candidates, slots[by_candidate], owner[by_candidate], starts)


def _refuse_overlap(starts: IntArray, counts: IntArray) -> None:
    clash = np.flatnonzero(starts[:-1] + counts[:-1] > starts[1:])
    if clash.size:
        first = int(clash[0])
        raise BadMirrorInputError(
            f"row mirrors of source rows {starts[first]} to {starts[first] + counts[first] - 1} and from "
            f"{starts[first + 1]} on overlap"
        )


def _cut_runs(
    candidates: Sequence[SparseKVRowMirror], slots: IntArray, owner: IntArray, starts: IntArray
) -> tuple[SparseKVRowMirror, ...]:
    breaks = np.flatnonzero((np.diff(slots) != 1) | (np.diff(owner) != 0)) + 1
    firsts = np.concatenate(([0], breaks)) if slots.size else breaks
    lengths = np.diff(np.concatenate((firsts, [slots.size])))
    written: list[SparseKVRowMirror] = []
    for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
        mirror = candidates[owner[first]]
        skipped = int(slots[first] - starts[owner[first]])
        sources = tuple(start + skipped for start in mirror.source_starts)
        written.append(SparseKVRowMirror(sources, mirror.destination_start + skipped, length))
    return tuple(written)


class RowSet:
    """A step's row mirrors as arrays, with the spans of each source worked out once for all of its layers alike."""

    def __init__(self, mirrors: Sequence[SparseKVRowMirror]) -> None:
        self.mirrors = tuple(mirrors)
        self.num_rows = sum(mirror.num_rows for mirror in mirrors)
        self._destination = np.array([mirror.destination_start for mirror in mirrors], dtype=np.int64)
        self._rows = np.array([mirror.num_rows for mirror in mirrors], dtype=np.int64)
        self._in_bytes: dict[tuple[int, int, int, int], RowSpans] = {}

    def in_bytes(self, source_index: int, page_rows: int, page_bytes: int, row_bytes: int) -> RowSpans:
        """Where the rows of a source lie, in bytes from the start of a layer's resident pages and host rows.

        Its pages have `page_rows` rows of `row_bytes` and begin `page_bytes` apart. Spans that go on from one another
        in memory are joined.
        """
        key = (source_index, page_rows, page_bytes, row_bytes)
        if key not in self._in_bytes:
            spans = self._spans(source_index, 0 if page_bytes == page_rows * row_bytes else page_rows)
            page, row = np.divmod(spans.source, page_rows)
            source = page * page_bytes + row * row_bytes
            self._in_bytes[key] = RowSpans(source, spans.destination * row_bytes, spans.rows * row_bytes)
        return self._in_bytes[key]

    def _spans(self, source_index: int, page_rows: int) -> RowSpans:
        """The spans of a source. `page_rows`: none crosses a resident page of so many rows, for pages that do not
        follow one another in memory; 0 where they do."""
        source = np.array([mirror.source_starts[source_index] for mirror in self.mirrors], dtype=np.int64)
        spans = RowSpans(source, self._destination, self._rows)
        return _split_at_pages(spans, page_rows) if page_rows else _joined(spans)


def _joined(spans: RowSpans) -> RowSpans:
    goes_on = (spans.source[1:] == spans.source[:-1] + spans.rows[:-1]) & (
        spans.destination[1:] == spans.destination[:-1] + spans.rows[:-1]
    )
    if not goes_on.any():
        return spans
    firsts = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
    return RowSpans(spans.source[firsts], spans.destination[firsts], np.add.reduceat(spans.rows, firsts))


def _split_at_pages(spans: RowSpans, page_rows: int) -> RowSpans:
    if not spans.rows.size:
        return spans
    first_page = spans.source // page_rows
    pages = (spans.source + spans.rows - 1) // page_rows - first_page + 1
    owner = np.repeat(np.arange(pages.size), pages)
    number = np.arange(owner.size) - np.repeat(np.cumsum(pages) - pages, pages)
    start = np.maximum(spans.source[owner], (first_page[owner] + number) * page_rows)
    stop = np.minimum(spans.source[owner] + spans.rows[owner], (first_page[owner] + number + 1) * page_rows)
    return RowSpans(start, spans.destination[owner] + start - spans.source[owner], stop - start)
