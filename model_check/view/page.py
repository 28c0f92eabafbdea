"""The page of a picture: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ..errors import ToolMissingError
from .payload import payload
from .picture import Failure, Picture
from .styles import HATCHES, STYLES

_HERE = Path(__file__).resolve().parent
_HATCH_NAMES = dict(zip(HATCHES, ("plain", "slash", "backslash", "flat", "upright", "dots", "cross"), strict=True))


def page(picture: Picture) -> str:
    """The page's text. Raises `ToolMissingError` where Bokeh is not installed."""
    try:
        from bokeh.embed import components
        from bokeh.resources import Resources

        from .figures import figures, seen_px
    except ImportError as error:
        raise ToolMissingError(
            f"pages are drawn with Bokeh, and {error.name} is not installed; `pip install 'palimpsest-cache[view]'`"
        ) from error
    library = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    script, places = components(figures(len(picture.lanes), len(picture.strips), len(picture.moments)))
    return _asset("page.html").substitute(
        title=escape(picture.title),
        about=escape(picture.about),
        verdict=_verdict(picture),
        legend=_legend(picture),
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        library=library,
        figures=script,
        data=_packed(payload(picture)),
        script=(_HERE / "page.js").read_text(encoding="utf-8"),
        strips_px=str(seen_px(len(picture.strips))),
        **places,
    )


def _asset(name: str) -> Template:
    return Template((_HERE / name).read_text(encoding="utf-8"))


def _packed(data: dict[str, Any]) -> str:
    """The data as text that any page can hold: a tenth of its JSON."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _verdict(picture: Picture) -> str:
    if picture.failure is None:
        says = {"trace": "Every event is one of the protocol.", "schedule": "Nothing was found."}
        return f'<p class="holds"><b>✓ holds</b> {says.get(picture.kind, "")}</p>'
    return _failing(picture.failure)


def _failing(failure: Failure) -> str:
    said = "".join(
        f'<p class="property"><b>{escape(name)}</b> {escape(words)}</p>' for name, words in failure.properties
    )
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in failure.values if value
    )
    values = f'<details open><summary>The values that break it</summary><table id="values">{rows}</table></details>'
    jump = '<button id="to-failing" title="F">show the failing step</button>' if failure.at is not None else ""
    return (
        f'<p class="fails"><b>✗ fails</b> <span id="what">{escape(failure.what)}</span> {jump}</p>'
        f"{said}{values if rows else ''}"
    )


def _legend(picture: Picture) -> str:
    used = {piece.state for strip in picture.strips for piece in strip.pieces}
    return "".join(
        f'<span class="state"><i class="{_HATCH_NAMES[style.hatch]}" style="background-color:{style.fill}"></i>'
        f"{escape(state.lower().replace('_', ' '))}</span>"
        for state, style in STYLES.items()
        if state in used
    )
