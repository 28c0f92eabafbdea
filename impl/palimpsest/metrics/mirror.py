"""The host mirror's statistics as metrics: its reports are counts since the last one, which are added up here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from palimpsest.host_mirror.types import MirrorStats

PREFIX = "palimpsest:host_mirror_"

#: the name that a report has for a count, the metric's, and what it says
COUNTS = {
    "cache_hits": ("hot_row_hits", "Selected rows that were on the device."),
    "cache_misses": ("hot_row_misses", "Selected rows that were fetched from the host."),
    "host_to_device_bytes": ("fetched_bytes", "Bytes fetched from the host."),
}


class MirrorCollector(Collector):
    """Adds up a worker's reports. The runner hands each to `add`, on the thread that asked for it:

    collector.add(worker.get_kv_connector_stats())
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels or {})
        self._totals = dict.fromkeys(COUNTS, 0.0)

    def add(self, report: MirrorStats | None) -> None:
        """Add a report's counts; None, where there was nothing to report, adds nothing."""
        if report is not None:
            for name in COUNTS:
                self._totals[name] += sum(report.data.get(name, ()))

    def collect(self) -> Iterator[Metric]:
        """A counter for each count."""
        for report, (name, says) in COUNTS.items():
            made = CounterMetricFamily(PREFIX + name, says, labels=list(self._labels))
            made.add_metric(list(self._labels.values()), self._totals[report])
            yield made


def as_table() -> str:
    """The metrics as a Markdown table, for the docs."""
    lines = ["| metric | kind | says |", "| --- | --- | --- |"]
    return (
        "\n".join([*lines, *(f"| `{PREFIX}{name}_total` | counter | {says} |" for name, says in COUNTS.values())])
        + "\n"
    )
