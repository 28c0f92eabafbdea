"""What a replay says: how much was accepted, or which event broke which rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: what a difference in a variable's post-state breaks first
PROPERTIES_OF = {
    "slots.tenant": ("TenantIsolation",),
    "slots.version": ("TenantIsolation", "ReadIntegrity"),
    "slots.status": ("TenantIsolation", "ReadIntegrity"),
    "slots.writer": ("SingleWriter",),
    "lost": ("SingleWriter",),
    "rows": ("SingleWriter",),
    "preserved": ("PreservedBeforeOverwrite", "ReadIntegrity"),
    "reads": ("ReadIntegrity",),
    "tags": ("ReadIntegrity", "SourceFrozen"),
    "holders": ("PageExclusive", "ReleasedOnce"),
    "staged_bytes": ("BudgetExact",),
    "fits": ("BudgetExact",),
    "queues": ("TaskChain",),
    "tasks": ("TaskChain",),
    "records": ("RecordBeforeWake",),
    "drained": ("RecordBeforeWake", "FailLoud"),
    "dropped": ("ReleasedOnce",),
    "sealed": ("ReleasedOnce",),
    "flushed": ("EveryTaskEnds",),
    "steps": ("ConsumeOnce",),
}


class RejectedError(Exception):
    """An event that the specification does not allow."""

    def __init__(self, kind: str, name: str, properties: tuple[str, ...], says: str, state: dict[str, Any]) -> None:
        super().__init__(says)
        self.kind, self.name, self.properties, self.says, self.state = kind, name, properties, says, state


class TraceError(ValueError):
    """A file that is not a whole trace: empty, truncated, or of another schema."""


@dataclass
class Verdict:
    """The outcome of one trace."""

    trace: str
    events: int
    accepted: int
    rejection: RejectedError | None = None
    seq: int | None = None
    action: str | None = None
    actions: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every event was accepted and there was one."""
        return self.rejection is None and self.accepted == self.events > 0

    def __str__(self) -> str:
        if self.ok:
            return f"{self.trace}: accepted, {self.accepted} events"
        assert self.rejection is not None
        what = "guard" if self.rejection.kind == "guard" else "post-state of"
        return (
            f"{self.trace}: event {self.seq} ({self.action}) rejected: {what} {self.rejection.name}: "
            f"{self.rejection.says}; breaks {', '.join(self.rejection.properties)}"
        )
