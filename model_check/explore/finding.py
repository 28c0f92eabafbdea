"""What a schedule can find."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from ..replay.verdict import RejectedError


@dataclass(frozen=True)
class Finding:
    """Something that must not be: its kind, what happened, and the properties that it breaks."""

    kind: str
    says: str
    properties: tuple[str, ...] = ()

    @classmethod
    def of_error(cls, thread: str, error: BaseException) -> Finding:
        """An exception that nobody expected."""
        frames = traceback.extract_tb(error.__traceback__)
        at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return cls("exception", f"{thread} raised {type(error).__name__}: {error}{at}")

    @classmethod
    def of_rejection(cls, action: str, rejection: RejectedError) -> Finding:
        """An event that the specification does not allow."""
        what = "guard" if rejection.kind == "guard" else "post-state of"
        return cls("rejected", f"{action}: {what} {rejection.name}: {rejection.says}", rejection.properties)

    def __str__(self) -> str:
        breaks = f" (breaks {', '.join(self.properties)})" if self.properties else ""
        return f"{self.kind}: {self.says}{breaks}"
