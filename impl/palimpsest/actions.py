"""The registry of the protocol's actions: one entry, one function, one critical section, one event.

An action of the package is the function that carries `@action(NAME)`; its body holds the lock named
here, and emits the event of the same name inside it. Actions of the environment are done by the device
and the scheduler; the package (or a runner) reports them where it can see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Action:
    """Who does an action, under which lock, and what it changes."""

    name: str
    threads: tuple[str, ...]
    lock: str | None
    does: str
    environment: bool = False


def _table(*rows: Action) -> dict[str, Action]:
    return {row.name: row for row in rows}


ENGINE, BUILDER, PREFETCH, COMMITTER, DEVICE = "engine", "builder", "prefetch", "committer", "device"
_READERS = (PREFETCH, BUILDER)
_WRITERS = (COMMITTER, ENGINE)  # eager mode: the engine is its own committer

ACTIONS: dict[str, Action] = _table(
    Action("begin_step", (ENGINE,), "state", "drain, end generations, register hits, plan early reads"),
    Action("drain", (ENGINE, BUILDER), "task", "take the records of finished writes and commit their rows"),
    Action("seal_oldest", (ENGINE,), "state", "close the open deferred tasks that hold the oldest ticket"),
    Action("escalate", (ENGINE,), "task", "put deferred tasks on the high queue"),
    Action("join_begin", (ENGINE, *_READERS), "task", "start to wait for tasks"),
    Action("join_end", (ENGINE, *_READERS), "task", "the tasks waited for are finished"),
    Action("reserve", (ENGINE,), "task", "charge the bytes of a step's deferred clones"),
    Action("unreserve", (ENGINE,), "task", "give back the charge of a step that did not publish"),
    Action("claim_page_begin", (ENGINE,), "page", "start to wait for a free staging page"),
    Action("claim_page_end", (ENGINE,), "page", "the step becomes the page's first holder"),
    Action("freeze", (ENGINE,), None, "queue the copies of the live buffers"),
    Action(
        "publish",
        (ENGINE,),
        "state",
        "drain, preserve, claim slots, register tasks, plan again, store the step",
    ),
    Action("dispatch", (ENGINE,), "task", "hand the step's immediate tasks to the committer"),
    Action("take_step", (BUILDER,), "state", "take the step's context, exactly once"),
    Action("discard_step", (BUILDER, ENGINE), "state", "take the context and drop its reads"),
    Action("release_page", (BUILDER, ENGINE, COMMITTER), "page", "holders leave a staging page"),
    Action("begin_fetch", _READERS, "state", "mark a read as being fetched"),
    Action("end_fetch", _READERS, "state", "check versions of the fetched rows; the read is over"),
    Action("drop_read", (BUILDER, ENGINE, PREFETCH), "state", "a read is over without being fetched"),
    Action("claim_copy", _WRITERS, "task", "pop queued tasks and claim their copy stage"),
    Action("host_ready", _WRITERS, "task", "the tasks' rows are on the host; tickets are released"),
    Action("begin_pool_write", _WRITERS, "task", "decide which rows are written: those not taken over"),
    Action("complete", _WRITERS, "task", "the rows are in the pool; publish the completion records"),
    Action("fail", (COMMITTER, ENGINE), "task", "tasks are lost; tickets are released"),
    Action("record_failure", (COMMITTER, ENGINE), "task", "publish the failure records"),
    Action("wake", (COMMITTER, ENGINE), "task", "waiters of finished or failed tasks are woken"),
    Action("reset", (ENGINE,), "state", "a new epoch: nothing written before is visible"),
    Action("shutdown_begin", (ENGINE,), "state", "later calls raise"),
    Action("shutdown_end", (ENGINE,), "state", "threads are joined, everything is released"),
    Action("copy_lands", (DEVICE, ENGINE), None, "a step's rows are in its staging page", environment=True),
    Action(
        "overwrite_live",
        (DEVICE, ENGINE),
        None,
        "the next forward rewrites the live buffers",
        environment=True,
    ),
)


def action(name: str) -> Callable[[F], F]:
    """A decorator that ties a function to its entry in `ACTIONS`; unknown names raise `KeyError`."""
    entry = ACTIONS[name]

    def mark(function: F) -> F:
        function.__palimpsest_action__ = entry.name  # type: ignore[attr-defined]  # a mark for the name test
        return function

    return mark
