"""A trace sink that holds each event against the in-process checker and the behavior."""

from __future__ import annotations

from typing import Any

from palimpsest.trace.sinks import Tag

from ..explore.scheduler import Scheduler
from ..explore.watch import Watch
from .follow import Follower


class DrivenSink(Watch):
    """What a watched run has, and the behavior that it follows."""

    def __init__(self, scheduler: Scheduler, tag: Tag, follower: Follower) -> None:
        super().__init__(scheduler, tag)
        self._follower = follower

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Check one event, and let the behavior go on by it."""
        super().emit(action, args, post)
        self._follower.logged(action, args, post)
