"""A picture as the data that the page's script works on: columns and tables, so that 10,000 events stay small."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .picture import Failure, Picture
from .styles import HATCHES, lane_color, style_of


class _Table:
    """Numbers for texts that come often."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def places(self, texts: Iterable[str]) -> list[int]:
        return [self.place(text) for text in texts]

    def texts(self) -> list[str]:
        return list(self._places)


def payload(picture: Picture) -> dict[str, Any]:
    """The data; times in it are numbers of moments from 0."""
    texts, states = _Table(), _Table()
    lane = {name: row for row, name in enumerate(picture.lanes)}
    moments, pieces = picture.moments, [piece for strip in picture.strips for piece in strip.pieces]
    data: dict[str, Any] = {
        "lanes": [[name, lane_color(name)] for name in picture.lanes],
        "lane": [lane[moment.lane] for moment in moments],
        "number": [moment.number for moment in moments],
        "action": texts.places(moment.action for moment in moments),
        "thread": texts.places(moment.thread for moment in moments),
        "notes": [texts.places(moment.notes) for moment in moments],
        "strips": [[strip.group, strip.name, len(strip.pieces)] for strip in picture.strips],
        "start": [piece.start for piece in pieces],
        "stop": [piece.stop for piece in pieces],
        "state": states.places(piece.state for piece in pieces),
        "label": texts.places(piece.label for piece in pieces),
        "touches": [list(each) for each in picture.touches],
        "spans": [[lane[name], first, last, texts.place(what)] for name, first, last, what in picture.spans],
        "failure": _failure(picture.failure),
        "backTo": picture.back_to,
    }
    styles = [style_of(state) for state in states.texts()]
    data["states"] = [
        [state, style.fill, HATCHES.index(style.hatch)] for state, style in zip(states.texts(), styles, strict=True)
    ]
    return {**data, "texts": texts.texts()}


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else {"at": failure.at, "what": failure.what}
