"""The plot of a run: a horizontal bar per workload, its goal as a mark, as plain SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from palimpsest.bench.results import Measured

_WIDTH, _LINE, _LEFT, _RIGHT, _TOP = 860, 30, 330, 150, 44
_MET, _MISSED = "#2a7f4f", "#b3402e"


def svg(title: str, measured: Sequence[Measured]) -> str:
    """The bars, each as long as its ratio to the floor; a line where its goal is, another where the floor is."""
    height = _TOP + _LINE * len(measured) + 16
    longest = max([1.0, *(max(each.ratio, each.goal) for each in measured)])
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    floor = _LEFT + scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
        f'<path class="floor" d="M{floor:.1f} {_TOP - 6}V{height - 12}" stroke="#999" stroke-dasharray="3 3"/>',
    ]
    for number, each in enumerate(measured):
        lines += _line(each, _TOP + number * _LINE, scale)
    return "\n".join([*lines, "</svg>", ""])


def _line(each: Measured, top: int, scale: float) -> Iterator[str]:
    middle, goal = top + _LINE // 2 + 4, _LEFT + each.goal * scale
    yield f'<text x="12" y="{middle}">{escape(f"{each.workload}: {each.title}")}</text>'
    yield (
        f'<rect class="bar" x="{_LEFT}" y="{top + 5}" width="{each.ratio * scale:.1f}" height="{_LINE - 10}"'
        f' fill="{_MET if each.met else _MISSED}"/>'
    )
    yield (
        f'<line class="goal" x1="{goal:.1f}" x2="{goal:.1f}" y1="{top + 1}" y2="{top + _LINE - 1}"'
        ' stroke="black" stroke-width="2"/>'
    )
    says = f"{each.ratio:.2f} of {each.goal:g}"
    yield f'<text x="{_LEFT + max(each.ratio, each.goal) * scale + 8:.1f}" y="{middle}">{says}</text>'
