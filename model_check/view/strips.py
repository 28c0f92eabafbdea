"""Strips: what a slot, a page, a task, a read or a variable was over time, without what says the same twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: more strips of a short life than these share rows
_MOST_ALONE = 12
#: more slots than these come last
_MOST_SLOTS_FIRST = 24
#: groups of things that come and go
_SHORT_LIVED = ("task", "read")
GROUPS = ("slot", "page", "task", "read", "variable")


class Piece(NamedTuple):
    """From moment `start` up to `stop`, it was in this state; `label` says more."""

    start: int
    stop: int
    state: str
    label: str


@dataclass(frozen=True)
class Strip:
    """The pieces of one thing, in order, or of several that never were at the same time."""

    group: str
    name: str
    pieces: tuple[Piece, ...]


#: of a strip in the making: its group, and what it is of
Key = tuple[str, "int | str | tuple[int, str]"]


@dataclass
class Strips:
    """Takes what things are, moment by moment, and gives the strips."""

    _open: dict[Key, tuple[int, str, str]] = field(default_factory=dict)
    _done: dict[Key, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    _touched: dict[int, set[Key]] = field(default_factory=lambda: defaultdict(set))

    def put(self, key: Key, at: int, state: str, label: str) -> None:
        """From moment `at` on, the thing is in this state."""
        before = self._open.get(key)
        if before is not None and before[1:] == (state, label):
            return
        self.end(key, at)
        self._open[key] = at, state, label
        self._touched[at].add(key)

    def end(self, key: Key, at: int) -> None:
        """The thing is there no more."""
        if (before := self._open.pop(key, None)) is None:
            return
        if before[0] < at:
            self._done[key].append(Piece(before[0], at, *before[1:]))
        self._touched[at].add(key)

    def touch(self, keys: Iterable[Key], at: int) -> None:
        """The moment is about these things, whether it changed them or not."""
        self._touched[at].update(keys)

    def known(self, key: Key) -> bool:
        """Whether the thing is there."""
        return key in self._open

    def finish(self, stop: int) -> tuple[tuple[Strip, ...], tuple[tuple[int, ...], ...]]:
        """The strips, in order, and for each moment the places of those that it touched."""
        for key in list(self._open):
            self.end(key, stop)
        self._touched.pop(stop, None)
        rows: list[Strip] = []
        place: dict[Key, int] = {}
        for group in GROUPS:
            self._rows_of(group, rows, place)
        rows, place = _slots_last(rows, place)
        touches = ({place[key] for key in self._touched.get(at, ()) if key in place} for at in range(stop))
        return tuple(rows), tuple(tuple(sorted(each)) for each in touches)

    def _rows_of(self, group: str, rows: list[Strip], place: dict[Key, int]) -> None:
        keys = sorted((key for key in self._done if key[0] == group), key=lambda key: _order(key[1]))
        for named, several in _alike(group, keys, self._done):
            for key in several:
                place[key] = len(rows)
            pieces = sorted(piece for key in (several if named is None else several[:1]) for piece in self._done[key])
            rows.append(Strip(group, named or f"{group}s", tuple(pieces)))


def _slots_last(rows: list[Strip], place: dict[Key, int]) -> tuple[list[Strip], dict[Key, int]]:
    """Where there are so many slots that nothing else would be seen, they come last."""
    slots = sum(strip.group == "slot" for strip in rows)
    if slots <= _MOST_SLOTS_FIRST:
        return rows, place
    moved = {key: row - slots if row >= slots else row + len(rows) - slots for key, row in place.items()}
    return rows[slots:] + rows[:slots], moved


def _order(what: object) -> tuple[int, str]:
    match what:
        case int():
            return what, ""
        case int() as number, key:
            return number, str(key)
    return 0, str(what)


def _alike(group: str, keys: list[Key], pieces: dict[Key, list[Piece]]) -> Iterable[tuple[str | None, list[Key]]]:
    """Which things share a row, and its name; None for one of things that follow one another."""
    if group == "slot":
        yield from _merged(keys, pieces)
    elif group in _SHORT_LIVED and len(keys) > _MOST_ALONE:
        yield from ((None, each) for each in _packed(keys, pieces))
    else:
        yield from ((str(key[1]) if group == "variable" else f"{group} {key[1]}", [key]) for key in keys)


def _merged(keys: list[Key], pieces: dict[Key, list[Piece]]) -> Iterable[tuple[str, list[Key]]]:
    """The (slot, key) that went through the very same share a strip."""
    same: dict[tuple[Piece, ...], list[Key]] = defaultdict(list)
    for key in keys:
        same[tuple(pieces[key])].append(key)
    for several in same.values():
        by_names: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for slot in sorted({key[1][0] for key in several if isinstance(key[1], tuple)}):
            names = tuple(key[1][1] for key in several if isinstance(key[1], tuple) and key[1][0] == slot)
            by_names[names].append(slot)
        yield "; ".join(f"{_slots(slots)} {', '.join(names)}" for names, slots in by_names.items()), several


def _slots(slots: Sequence[int]) -> str:
    text = ranges(slots)
    return f"slot {text}" if len(slots) == 1 else f"slots {text}"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers, runs of them by their ends: `0-7, 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _packed(keys: list[Key], pieces: dict[Key, list[Piece]]) -> Iterable[list[Key]]:
    """Things by rows on which they follow one another, with a gap between."""
    rows: list[list[Key]] = []
    ends: list[int] = []
    for key in sorted(keys, key=lambda key: pieces[key][0].start):
        start, stop = pieces[key][0].start, pieces[key][-1].stop
        row = next((row for row, end in enumerate(ends) if end < start), len(rows))
        if row == len(rows):
            rows.append([])
            ends.append(0)
        rows[row].append(key)
        ends[row] = stop
    return rows
