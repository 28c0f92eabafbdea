"""What was found wrong, from the files that a check leaves: counterexamples, schedules, rejected traces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..view.open import open_picture
from ..view.page import page
from ..view.picture import Picture

#: pictures in a page: each weighs more than a megabyte
MOST_PICTURES = 4


@dataclass(frozen=True)
class Finding:
    """A file in which something fails; `drawn` is its page, empty beyond the first few."""

    file: str
    picture: Picture
    drawn: str

    @property
    def heading(self) -> str:
        """What fails, in a line."""
        return self.picture.title


def findings(files: Iterable[Path]) -> list[Finding]:
    """A finding for each file in which something fails. Raises `ViewError` for one that is none of the three."""
    pictures = [(path, open_picture(path)) for path in files]
    failing = [(path, picture) for path, picture in pictures if picture.failure is not None]
    return [
        Finding(path.name, picture, page(picture) if place < MOST_PICTURES else "")
        for place, (path, picture) in enumerate(failing)
    ]
