"""What a file is, by its content, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

from .of_counterexample import counterexample_picture
from .of_schedule import schedule_picture
from .of_trace import trace_picture
from .picture import Picture, ViewError


def open_picture(path: Path) -> Picture:
    """The picture of a trace, a counterexample or a schedule. Raises `ViewError` for any other file, and `CheckError`
    for a schedule that cannot be run."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        whole = _json(first) or _json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ViewError(f"{path}: {error}") from error
    if "schema" in whole:
        return trace_picture(path)
    if "violated" in whole:
        return counterexample_picture(path)
    if "turns" in whole:
        return schedule_picture(path)
    raise ViewError(f"{path}: no trace, no counterexample of `palimpsest check`, no schedule of `palimpsest explore`")


def _json(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
