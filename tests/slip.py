"""A slip of a concurrency change, for tests of what shows it found."""

from __future__ import annotations

from palimpsest.prefix_cache.controller import PrefixCacheController
from palimpsest.prefix_cache.tasks import WriteTask

SCENARIO = "save-waits-for-the-last-write"


def woken_before_the_record(self: PrefixCacheController, tasks: list[WriteTask]) -> None:
    """`_write_pool` with its last two parts swapped; breaks `RecordBeforeWake`."""
    write = self.begin_pool_write(tasks)
    for key, slots, _, rows, _ in write.writes:
        self._pool.write(key, slots, rows)
    self._release_pages(tasks)
    self.wake(tasks)
    self.complete(tasks, write)
