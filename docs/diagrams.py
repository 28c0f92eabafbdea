"""Diagrams of the docs as plain SVG, which any viewer shows without a network: states, sequences, flows.

Colors follow the reader's choice of light or dark. Text is measured by its number of characters, a little generously.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

_STYLE = """\
<style>
svg { background: #fff }
text { font: 12px sans-serif; fill: #222; stroke: #fff; stroke-width: 4px; paint-order: stroke }
.box { fill: #f4f6fa; stroke: #456 } .note { fill: #fdf6dd; stroke: #a98 } .in { stroke: none }
.arrow { fill: none; stroke: #456 } .head { fill: #456 } .life { stroke: #99a; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
svg { background: #1e2129 } text { fill: #eee; stroke: #1e2129 }
.box { fill: #2a3040; stroke: #9ab } .head { fill: #9ab }
.note { fill: #4a4530 } .arrow { stroke: #9ab } }
</style>
<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path class="head" d="M0 0L8 4L0 8z"/></marker>"""
_HEIGHT, _CHARACTER = 30, 7.2
#: between the tops of states, between the lines of a sequence, and the size of a flow's cells
_STATE, _LINE, _CELL = 62, 34, (190, 76)


class Arrow(NamedTuple):
    """From one place to another; a sequence's arrow to itself stands for what somebody does alone."""

    source: str
    to: str
    says: str


def states(names: Sequence[str], initial: str, arrows: Sequence[Arrow]) -> str:
    """A life cycle: states in a column, the next one straight below, other steps as arcs: down right, up left.

    A final state has two borders.
    """
    width = max(_wide(name) for name in names)
    left = max([60.0, *(_reach(names, arrow) for arrow in arrows if _place(names, arrow) < 0)])
    tops = {name: 34 + at * _STATE for at, name in enumerate(names)}
    going = {arrow.source for arrow in arrows}
    parts = [_line(left + width / 2, 8, left + width / 2, tops[initial])] if initial == names[0] else []
    for name in names:
        parts.append(_box(left, tops[name], width, name))
        if name not in going:
            parts.append(
                f'<rect class="arrow" x="{left + 3:g}" y="{tops[name] + 3}" width="{width - 6:g}" height="24"/>'
            )
    for arrow in arrows:
        parts += _step(names, arrow, tops, left, width)
    right = max([90.0, *(_reach(names, arrow) for arrow in arrows if _place(names, arrow) != -1)])
    return _svg(left + width + right, tops[names[-1]] + _HEIGHT + 10, parts)


def _place(names: Sequence[str], arrow: Arrow) -> int:
    return names.index(arrow.to) - names.index(arrow.source)


def _bulge(names: Sequence[str], arrow: Arrow) -> float:
    return 22 + 26 * abs(_place(names, arrow))


def _reach(names: Sequence[str], arrow: Arrow) -> float:
    return _bulge(names, arrow) * 0.75 + 10 + _CHARACTER * len(arrow.says)


def _step(names: Sequence[str], arrow: Arrow, tops: Mapping[str, int], left: float, width: float) -> list[str]:
    place, begin, end = _place(names, arrow), tops[arrow.source], tops[arrow.to]
    if place == 1:
        middle = left + width / 2
        return [_line(middle, begin + _HEIGHT, middle, end), _text(middle + 7, end - 12, arrow.says)]
    side, out = (left, -1) if place < 0 else (left + width, 1)
    start, stop = (begin + 20, end + 10) if place >= 0 else (begin + 10, end + 20)
    if place == 0:
        start, stop = begin + 5, begin + 25
    far = side + out * _bulge(names, arrow)
    path = f'<path class="arrow" d="M{side:g} {start}C{far:g} {start} {far:g} {stop} {side:g} {stop}" {_HEAD}/>'
    at, high = side + out * (_bulge(names, arrow) * 0.63 + 5), start + 0.216 * (stop - start)  # a third of the way
    return [path, _text(at, high + 4, arrow.says, "end" if out < 0 else "start")]


def sequence(people: Sequence[str], lines: Sequence[Arrow]) -> str:
    """Who does what in which order; a line from and to nobody is a note across."""
    gap = 150
    at = {name: 70 + gap * number for number, name in enumerate(people)}
    end = 58 + _LINE * len(lines)
    parts = [f'<path class="arrow life" d="M{x} 38V{end}"/>{_box(x - 50, 8, 100, name)}' for name, x in at.items()]
    longest = max(
        [0.0, *(at[line.source] + 20 + _CHARACTER * len(line.says) for line in lines if line.source == line.to != "")]
    )
    for number, line in enumerate(lines):
        y = 66 + _LINE * number
        if not line.source:
            parts.append(
                f'<rect class="note" x="20" y="{y - 16}" width="{gap * (len(people) - 1) + 100}" height="24"/>'
            )
            parts.append(_text(70 + gap * (len(people) - 1) / 2, y, line.says, "middle"))
        elif line.source == line.to:
            x = at[line.source]
            parts.append(f'<circle class="head" cx="{x}" cy="{y - 4}" r="4"/>{_text(x + 10, y, line.says)}')
        else:
            begin, stop = at[line.source], at[line.to]
            parts += [_line(begin, y + 4, stop, y + 4), _text((begin + stop) / 2, y - 2, line.says, "middle")]
    return _svg(max(longest, at[people[-1]] + 60), end, parts)


def flow(cells: Mapping[str, tuple[float, float]], arrows: Sequence[Arrow]) -> str:
    """Boxes in the cells (column, row) that they are given, and what goes from one to another."""
    wide = {name: _wide(name) for name in cells}
    middle = {name: (100 + x * _CELL[0], 30 + y * _CELL[1]) for name, (x, y) in cells.items()}
    parts = []
    for arrow in arrows:
        (x, y), (to_x, to_y) = middle[arrow.source], middle[arrow.to]
        if x == to_x:
            begin, end = (x, y + _HEIGHT / 2), (to_x, to_y - _HEIGHT / 2)
        else:
            begin, end = (x + wide[arrow.source] / 2, y), (to_x - wide[arrow.to] / 2, to_y)
        parts += [
            _line(*begin, *end),
            _text((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2 - 5, arrow.says, "middle"),
        ]
    parts += [_box(x - wide[name] / 2, y - _HEIGHT / 2, wide[name], name) for name, (x, y) in middle.items()]
    return _svg(max(x for x, _ in middle.values()) + 90, max(y for _, y in middle.values()) + 25, parts)


_HEAD = 'marker-end="url(#head)"'


def _wide(name: str) -> float:
    return 24 + _CHARACTER * len(name)


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', _STYLE, *parts, "</svg>", ""])


def _box(left: float, top: float, width: float, name: str) -> str:
    box = f'<rect class="box" x="{left:g}" y="{top:g}" width="{width:g}" height="{_HEIGHT}" rx="4"/>'
    return box + _text(left + width / 2, top + 19, name, "middle").replace("<text", '<text class="in"')


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="arrow" d="M{x:g} {y:g}L{to_x:g} {to_y:g}" {_HEAD}/>'


def _text(x: float, y: float, says: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(says)}</text>'
