"""Copies of whole KV blocks inside the caches that hold them, as if every source were read first.

A cache is a tensor whose first dimension is a multiple of the scheduler's blocks (several kernel blocks make
one block). Many caches may be views of one storage: layers packed side by side in each block, or the same
bytes under another shape. What is copied is bytes: the span that a cache's blocks cover, each byte once.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_WORD_OF_SIZE = {word.itemsize: word for word in _WORDS} | {16: torch.complex128}
#: what torch copies by index on every kind of device; eight-bit floats, for one, it does not
_INDEXED = frozenset({*_WORDS, torch.float64, torch.float32, torch.float16, torch.bfloat16})


class KVCacheBlockCopy(NamedTuple):
    """Block `destination` becomes what block `source` was."""

    source: int
    destination: int


class BlockSpan(NamedTuple):
    """Where the blocks of a cache lie in its storage: block `b` is bytes `start + b * stride` and `length` on."""

    start: int
    length: int
    stride: int


def copy_kv_cache_blocks_inplace(
    kv_caches: Iterable[torch.Tensor], num_blocks: int, kv_cache_block_copies: Sequence[KVCacheBlockCopy]
) -> None:
    """Copy blocks in every cache; a block that is a source and a destination is read before it is written.

    Bytes between and around the blocks stay as they are. On an accelerator the copies are queued on the
    current stream. Takes room for the source blocks of one storage, once more; on the host mostly for one block.

    Raises `AssertionError` when a cache's first dimension is not divisible by `num_blocks`, `ValueError` when a
    copy names a block that does not exist or two copies have one destination; nothing is changed then.
    """
    caches = list(kv_caches)
    for cache in caches:
        if cache.shape[0] % num_blocks:
            raise AssertionError(
                f"a cache of shape {tuple(cache.shape)} has a first dimension that is not divisible by the "
                f"{num_blocks} blocks"
            )
    sources, destinations = _distinct(kv_cache_block_copies, num_blocks)
    if sources:
        plan = _Plan(sources, destinations)
        for part in _parts(caches, num_blocks):
            _copy(part, plan)


def _distinct(copies: Sequence[KVCacheBlockCopy], num_blocks: int) -> tuple[list[int], list[int]]:
    """Sources and destinations of the copies that change something, each destination once."""
    source_of: dict[int, int] = {}
    for source, destination in copies:
        if not (0 <= source < num_blocks and 0 <= destination < num_blocks):
            raise ValueError(f"a copy of block {source} to {destination}: blocks are 0 to {num_blocks - 1}")
        if source_of.setdefault(destination, source) != source:
            raise ValueError(f"blocks {source_of[destination]} and {source} are both copied to block {destination}")
    moved = [(source, destination) for destination, source in source_of.items() if source != destination]
    return [source for source, _ in moved], [destination for _, destination in moved]


class _Plan:
    """Copies of blocks; on demand an order in which each can be done by itself, and their numbers on a device."""

    def __init__(self, sources: list[int], destinations: list[int]) -> None:
        self.sources, self.destinations = sources, destinations
        self._sent: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and destinations, sent to `device` together and once."""
        if device not in self._sent:
            both = torch.tensor(self.sources + self.destinations).to(device, non_blocking=True)
            read, write = both.chunk(2)
            self._sent[device] = read, write
        return self._sent[device]

    @functools.cached_property
    def ordered(self) -> tuple[list[tuple[int, int]], list[list[int]]]:
        """Source and destination of copies, in an order in which none overwrites what a later one reads; and the rings
        that are left: blocks each of which becomes the next one, and the last the first."""
        if set(self.sources).isdisjoint(self.destinations):
            return list(zip(self.sources, self.destinations, strict=True)), []
        source_of = dict(zip(self.destinations, self.sources, strict=True))
        readers = Counter(self.sources)
        free = [block for block in self.destinations if not readers[block]]
        moves = []
        while free:
            block = free.pop()
            source = source_of.pop(block)
            moves.append((source, block))
            readers[source] -= 1
            if not readers[source] and source in source_of:
                free.append(source)
        return moves, _rings(source_of)


def _rings(source_of: dict[int, int]) -> list[list[int]]:
    """The rings that copies form of which each block is read by one and written by one. Empties `source_of`."""
    rings = []
    while source_of:
        block, source = source_of.popitem()
        ring = [block]
        while source != block:
            ring.append(source)
            source = source_of.pop(source)
        rings.append(ring)
    return rings


def _copy(part: _Part, plan: _Plan) -> None:
    """Copy what a part has. Views that cover one another's bytes are all read before one is written."""
    views, device = part.views, part.views[0].device
    if not part.apart:
        read, write = plan.on(device)
        taken = [view.index_select(0, read) for view in views]
        for view, rows in zip(views, taken, strict=True):
            view.index_copy_(0, write, rows)
    elif device.type == "cpu":
        _copy_block_by_block(views, *plan.ordered)
    elif len(plan.sources) == 1:
        source, destination = plan.sources[0], plan.destinations[0]
        for view in views:
            view[destination].copy_(view[source])
    else:
        read, write = plan.on(device)
        for view in views:
            view.index_copy_(0, write, view.index_select(0, read))


def _copy_block_by_block(views: list[torch.Tensor], moves: list[tuple[int, int]], rings: list[list[int]]) -> None:
    """Copies on the host one after the other: the bytes move once instead of twice."""
    for view in views:
        array = _as_array(view)
        for source, destination in moves:
            array[destination] = array[source]
        for ring in rings:
            first = array[ring[0]].copy()
            for block, source in pairwise(ring):
                array[block] = array[source]
            array[ring[-1]] = first


def _as_array(view: torch.Tensor) -> Array:
    """The very bytes of a view on the host, whose dtype NumPy may not have."""
    words = view if view.dtype in _WORDS else view.detach().view(_WORD_OF_SIZE[view.element_size()])
    return words.numpy()


# ------------------------------------------------------------------ what bytes a cache's blocks cover


class _Part(NamedTuple):
    """What is to be copied in one storage, or in several of one device."""

    #: a line per block; together they cover each byte of the blocks once
    views: list[torch.Tensor]
    #: whether no view's block covers bytes of another view's block of another number
    apart: bool


def _parts(caches: list[torch.Tensor], num_blocks: int) -> list[_Part]:
    """What is to be copied: in the storages of dense caches that have theirs for themselves, and in each other one."""
    sharing: dict[int, list[torch.Tensor]] = {}
    for cache in caches:
        if cache.numel():
            sharing.setdefault(cache.untyped_storage().data_ptr(), []).append(cache)
    alone: dict[int, list[torch.Tensor]] = {}
    parts = []
    for of_storage in sharing.values():
        first = of_storage[0]
        if len(of_storage) == 1 and first.is_contiguous():
            alone.setdefault(first.get_device(), []).append(_folded(first, num_blocks))
        else:
            parts.append(_part(of_storage, num_blocks))
    return parts + [_Part(views, apart=True) for views in alone.values()]


def _part(caches: list[torch.Tensor], num_blocks: int) -> _Part:
    """What the caches of one storage have to copy."""
    spans: set[BlockSpan] = set()
    gapped = []
    for cache in caches:
        if (span := _span(cache, num_blocks)) is None:
            gapped.append(_indexed(cache).view(num_blocks, -1, *cache.shape[1:]))
        else:
            spans.add(span)
    merged = _merged(spans)
    views = [_view_of(caches[0], span, num_blocks) for span in merged] + gapped
    return _Part(views, len(views) == 1 or (not gapped and _apart(merged, num_blocks)))


def _folded(cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """A line per block of a contiguous cache. (What is so already is not viewed again, nor in wider words: of sixty
    layers that takes longer than to copy a block.)"""
    rows = _indexed(cache)
    return rows if rows.shape[0] == num_blocks else rows.view(num_blocks, -1)


def _indexed(cache: torch.Tensor) -> torch.Tensor:
    """`cache`, its elements taken for ones of the same size where torch does not copy theirs by index."""
    plain = cache.detach() if cache.requires_grad else cache
    return plain if plain.dtype in _INDEXED else plain.view(_WORD_OF_SIZE[plain.element_size()])


@functools.lru_cache(maxsize=1024)
def _word(*numbers: int) -> torch.dtype:
    """The widest integers of which each of these numbers of bytes has a whole number."""
    return next(word for word in _WORDS if not any(number % word.itemsize for number in numbers))


def _span(cache: torch.Tensor, num_blocks: int) -> BlockSpan | None:
    """The bytes of the blocks of `cache`; None where a block's elements leave gaps between them."""
    folds, width = cache.shape[0] // num_blocks, cache.element_size()
    start, stride = int(cache.storage_offset()) * width, cache.stride(0) * folds * width
    if cache.is_contiguous():
        length = cache.numel() // num_blocks * width
        return BlockSpan(start, length, length)
    count = 1
    for step, size in sorted(zip(cache.stride(), (folds, *cache.shape[1:]), strict=True)):
        if size > 1 and step != count:
            return None
        count *= size
    return BlockSpan(start, count * width, stride) if num_blocks == 1 or stride >= count * width else None


def _merged(spans: Iterable[BlockSpan]) -> list[BlockSpan]:
    """The same bytes in as few spans as there can be: those that touch or overlap inside a block are one."""
    merged: list[BlockSpan] = []
    for span in sorted(spans, key=lambda span: (span.stride, span.start, -span.length)):
        last = merged[-1] if merged else None
        if last is not None and last.stride == span.stride and span.start <= last.start + last.length:
            length = max(last.length, span.start + span.length - last.start)
            if length <= span.stride:
                merged[-1] = last._replace(length=length)
                continue
        merged.append(span)
    return merged


def _apart(spans: list[BlockSpan], num_blocks: int) -> bool:
    """Whether the spans lie side by side within each block, or one after the other."""
    ends = [span.start + span.length for span in spans]
    if len({span.stride for span in spans}) == 1 and max(ends) - min(span.start for span in spans) <= spans[0].stride:
        return True
    extents = sorted((span.start, span.start + (num_blocks - 1) * span.stride + span.length) for span in spans)
    return all(before[1] <= after[0] for before, after in pairwise(extents))


def _view_of(owner: torch.Tensor, span: BlockSpan, num_blocks: int) -> torch.Tensor:
    """The blocks of `span` in the storage of `owner`, in the widest words that fit."""
    word = _word(*span)
    start, length, stride = (number // word.itemsize for number in span)
    whole = torch.empty(0, dtype=word, device=owner.device)
    return whole.set_(owner.untyped_storage(), start, (num_blocks, length), (stride, 1))
