"""The flight recorder of a cache: what it is told, and when it writes itself out."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from palimpsest.errors import (
    BadStepError,
    BudgetExceededError,
    ConfigRefusedError,
    HostMemoryError,
    KeyLayoutError,
    ShutdownError,
    StepConsumedError,
)
from palimpsest.prefix_cache.slow_waits import logger
from palimpsest.trace.recorder import FlightRecorder

if TYPE_CHECKING:
    from palimpsest.prefix_cache.interface import PrefixCacheConfig
    from palimpsest.prefix_cache.requests import RequestTasks
    from palimpsest.prefix_cache.slots import SlotTable
    from palimpsest.prefix_cache.state import CacheState
    from palimpsest.trace import Sink

#: errors that say what the caller did wrong, or that the end has come: nothing to look into
_CALLERS_OWN = (
    BadStepError,
    BudgetExceededError,
    HostMemoryError,
    KeyLayoutError,
    ShutdownError,
    StepConsumedError,
)

#: files that one recorder writes by itself
MOST_FILES = 4

#: of the files of this process
_NUMBERS = itertools.count(1)

Cache = TypeVar("Cache", bound="CacheState")
P = ParamSpec("P")
R = TypeVar("R")


def recorder_of(config: PrefixCacheConfig, trace: Sink | None) -> FlightRecorder | None:
    """The flight recorder that the configuration asks for, or the one that is handed in as the trace."""
    if isinstance(trace, FlightRecorder) or not config.flight_recorder_events:
        return trace if isinstance(trace, FlightRecorder) else None
    if trace is not None:
        raise ConfigRefusedError(
            f"flight_recorder_events is {config.flight_recorder_events}, and a trace is taken already: one of the two"
        )
    return FlightRecorder(config.flight_recorder_events)


def tables_of(slots: SlotTable, requests: RequestTasks) -> dict[str, Any]:
    """The slot table and the live requests; both locks are held."""
    tables = {key: slots.get_slot_status(key) for key in slots.keys}
    return {
        "tenant": slots.tenant.copy(),
        "keys": {key: {"version": t.version.copy(), "status": t.status.copy()} for key, t in tables.items()},
        "live": dict(requests.live),
        "generations": requests.generations,
    }


class Recording:
    """Writes the events to files when the cache raises, a few times at most."""

    def __init__(self, recorder: FlightRecorder, folder: str) -> None:
        self.recorder, self._folder, self._files = recorder, Path(folder), 0

    def write(self, error: BaseException) -> None:
        """Write a file, and log where; a file that cannot be written is logged, too."""
        if self._files >= MOST_FILES:
            return
        self._files += 1
        name = f"palimpsest-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{next(_NUMBERS)}.ndjson"
        path = self._folder / name
        try:
            self.recorder.dump(path)
        except OSError as failure:
            logger.error("prefix cache: %s; the events before it could not be written: %s", error, failure)
        else:
            logger.error("prefix cache: %s; the events before it: palimpsest replay %s", error, path)


def recorded(method: Callable[Concatenate[Cache, P], R]) -> Callable[Concatenate[Cache, P], R]:
    """`method`, after whose errors the flight recorder writes itself out."""

    @functools.wraps(method)
    def recording(self: Cache, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.recording is None:
            return method(self, *args, **kwargs)
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if not isinstance(error, _CALLERS_OWN):
                self.recording.write(error)
            raise

    return cast(Callable[Concatenate[Cache, P], R], recording)
