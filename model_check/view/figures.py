"""The figures of a page, made with Bokeh: an overview, the lanes and the strips.

Their sources come empty. `page.js` fills them with what can be seen and a little around it, draws that once, and then
only moves the drawing: the cost of a frame depends neither on the trace nor on how much is in view. It finds the
sources and ranges by their names.
"""

from __future__ import annotations

from typing import Any, Literal

from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, HoverTool, Model, Range1d
from bokeh.plotting import figure

from .styles import HATCHES

#: pixels of a row, of all rows that are seen at once at most, and of those drawn above and below
ROW_PX, LANE_PX, STRIPS_PX, AROUND_PX = 22, 46, 484, 176
_AXIS_PX, _OVERVIEW_PX = 24, 40
_INK = "#22262b"
_FONT = "system-ui, sans-serif"


def seen_px(strips: int) -> int:
    """The height of the strips that are seen at once."""
    return max(min(strips * ROW_PX, STRIPS_PX), ROW_PX)


def figures(lanes: int, strips: int, moments: int) -> dict[str, Model]:
    """The figures by the name of their place in the page, empty. Coordinates are numbers of moments from 1, and rows
    from 0 downwards."""
    time = Range1d(start=0.5, end=moments + 0.5, name="time")
    rows_px = seen_px(strips) + (2 * AROUND_PX if strips * ROW_PX > STRIPS_PX else 0)
    top = _figure("lanes", lanes * LANE_PX + _AXIS_PX, time, Range1d(start=lanes - 0.5, end=-0.5), axis="above")
    below = _figure("strips", rows_px, time, Range1d(start=rows_px / ROW_PX - 0.5, end=-0.5, name="rows"))
    spans = _bars(top, "spans", 0.1)
    _tell(top, [spans, _bars(top, "events", 0.42), _bars(top, "failed events", 0.5, "x")])
    _outlines(top, "selected event", 0.46)
    _texts(top, "event labels", 11)
    _tell(below, [_bars(below, f"pieces{place}", 0.84, hatch) for place, hatch in enumerate(HATCHES)])
    _outlines(below, "touched pieces", 0.84)
    _texts(below, "piece labels", 10)
    return {"overview": _overview(lanes, moments), "lanes": top, "strips": below}


def _figure(name: str, height: int, time: Range1d, rows: Range1d, axis: Literal["above"] | None = None) -> figure:
    made = figure(
        name=name, height=height, sizing_mode="stretch_width", x_range=time, y_range=rows, tools="",
        toolbar_location=None, x_axis_location=axis, y_axis_location=None, min_border=0, outline_line_color=None,
        lod_threshold=None, output_backend="canvas",
    )  # fmt: skip
    made.ygrid.grid_line_color, made.xgrid.grid_line_color = None, "#e6e9ed"
    made.xaxis.major_label_text_font, made.xaxis.minor_tick_line_color = _FONT, None
    return made


def _source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _bars(made: figure, name: str, height: float, hatch: str = "") -> Any:
    """Bars with one hatch: hatches that differ from bar to bar would be made anew for each of them."""
    return made.hbar(
        y="y", left="left", right="right", height=height, source=_source(name, "y", "left", "right", "fill", "says"),
        fill_color="fill", line_color=_INK, line_alpha=0.55, line_width=0.7, hatch_pattern=hatch or " ",
        hatch_color=_INK, hatch_alpha=0.2, hatch_scale=7, hatch_weight=1,
    )  # fmt: skip


def _outlines(made: figure, name: str, height: float) -> None:
    made.hbar(
        y="y", left="left", right="right", height=height, source=_source(name, "y", "left", "right"),
        fill_color=None, line_color=_INK, line_width=2.6,
    )  # fmt: skip


def _texts(made: figure, name: str, px: int) -> None:
    made.text(
        x="x", y="y", text="text", source=_source(name, "x", "y", "text", "alpha"), text_font=value(_FONT),
        text_font_size=f"{px}px", text_color=_INK, text_alpha="alpha", text_baseline="middle", x_offset=3,
    )  # fmt: skip


def _tell(made: figure, drawn: list[Any]) -> None:
    """Hovering shows the column `says`."""
    tip = "<div class='tip' style='max-width:420px;white-space:pre-wrap;overflow-wrap:anywhere'>@says</div>"
    made.add_tools(HoverTool(renderers=drawn, tooltips=tip, point_policy="follow_mouse"))


def _overview(lanes: int, moments: int) -> figure:
    """The whole time: how many moments each lane has."""
    made = figure(
        name="overview", height=_OVERVIEW_PX, sizing_mode="stretch_width",
        x_range=Range1d(start=0.5, end=moments + 0.5), y_range=Range1d(start=lanes, end=0), tools="",
        toolbar_location=None, x_axis_location=None, y_axis_location=None, min_border=0, outline_line_color=None,
        output_backend="canvas",
    )  # fmt: skip
    made.grid.visible = False
    source = _source("density", "y", "left", "right", "fill")
    made.hbar(y="y", left="left", right="right", height=0.8, source=source, fill_color="fill", line_color=None)
    return made
