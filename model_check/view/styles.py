"""How a state looks: a fill, and a hatch, so that it can be told without color."""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """A fill color, and a hatch of Bokeh's (empty for none)."""

    fill: str
    hatch: str


_PLAIN = Style("#eef0f2", "")

STYLES = {
    "ABSENT": Style("#ffffff", ""),
    "IN_TRANSIT": Style("#ffe3a6", "/"),
    "COMMITTED": Style("#a9dfc4", ""),
    "FREE": Style("#ffffff", ""),
    "HELD": Style("#bcd7f5", "\\"),
    "PENDING": Style("#ffffff", "."),
    "QUEUED": Style("#efe6c8", "-"),
    "COPYING": Style("#ffe3a6", "/"),
    "HOST_READY": Style("#cfe0f7", "|"),
    "WRITTEN": Style("#a9dfc4", ""),
    "FAILED": Style("#f3b5b0", "x"),
    "PLANNED": Style("#efe6c8", "-"),
    "PENDING READ": Style("#efe6c8", "-"),
    "PRESERVED": Style("#cfe0f7", "|"),
    "FETCHING": Style("#ffe3a6", "/"),
    "DONE": Style("#a9dfc4", ""),
    "OVER": Style("#eef0f2", "x"),
}
#: each a renderer of its own: hatches that differ from glyph to glyph are drawn anew on each frame
HATCHES = ("", "/", "\\", "-", "|", ".", "x")


def style_of(state: str) -> Style:
    """The style of a state; a plain one for a value."""
    return STYLES.get(state, _PLAIN)


def lane_color(lane: str) -> str:
    """The fill of a lane's events."""
    return _LANES.get(lane, "#d9d9e3")


_LANES = {
    "scheduler": "#e3e3ea",
    "engine": "#c6d8f2",
    "builder": "#d9cdf0",
    "prefetch": "#c9e8e4",
    "committer": "#f3dcc0",
    "closer": "#e6d3da",
    "device": "#dfe6c4",
}
