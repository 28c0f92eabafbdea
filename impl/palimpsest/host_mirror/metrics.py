"""Statistics of the hot rows: a snapshot is queued now and then, and read once it has landed."""

from __future__ import annotations

from palimpsest.host_mirror.state import WorkerState
from palimpsest.host_mirror.types import MirrorStats

METRICS_INTERVAL = 32


class MetricsMixin(WorkerState):
    """Statistics of a worker."""

    def get_kv_connector_stats(self) -> MirrorStats | None:
        """What was counted up to the last snapshot, once it has landed, otherwise None. Every `METRICS_INTERVAL`
        calls a snapshot is queued, unless one is on its way. Never waits."""
        if self._is_capturing() or not self.leader_runtimes:
            return None
        self._metrics_calls += 1
        if self._metrics_pending:
            return self._read_snapshot() if self._metrics_event.query() else None
        if self._metrics_calls >= METRICS_INTERVAL:
            self._metrics_calls = 0
            self._queue_snapshot()
        return None

    def _queue_snapshot(self) -> None:
        """Copy the counters and set them to zero, between the swaps that were queued before and those after."""
        current = self._current_stream()
        for runtime in self.leader_runtimes:
            group = runtime.index_group
            current.wait_stream(group.copy_stream)
            group.swap_stats_host.copy_(group.swap_stats, non_blocking=True)
            group.swap_stats.zero_()
            group.copy_stream.wait_stream(current)
        self._metrics_event.record()
        self._metrics_pending = True

    def _read_snapshot(self) -> MirrorStats:
        self._metrics_pending = False
        hits = misses = nbytes = 0
        for runtime in self.leader_runtimes:
            group_hits, group_misses = runtime.index_group.swap_stats_host.tolist()
            hits, misses = hits + group_hits, misses + group_misses
            nbytes += group_misses * runtime.index_group.stats_row_bytes
        stats = MirrorStats()
        stats.data.update(cache_hits=[hits], cache_misses=[misses], host_to_device_bytes=[nbytes])
        return stats
