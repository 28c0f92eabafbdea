"""The collector that Prometheus asks at each scrape."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from palimpsest.metrics import declarations
from palimpsest.metrics.declarations import COUNTER, METRICS, PREFIX

if TYPE_CHECKING:
    from palimpsest.prefix_cache.manager import PrefixCacheManager


class PrefixCacheCollector(Collector):
    """Reads the metrics of one prefix cache. `labels` stand on each of them, as `{"engine": "0"}`.

    It keeps no cache alive: when the cache is gone, a scrape gives nothing.
    """

    def __init__(self, cache: PrefixCacheManager, labels: Mapping[str, str] | None = None) -> None:
        self._cache, self._labels = weakref.ref(cache), dict(labels or {})

    def collect(self) -> Iterator[Metric]:
        """A family per metric; takes no lock of the cache."""
        cache = self._cache()
        if cache is None:
            return
        for metric in METRICS:
            yield family(metric, metric.read(cache), self._labels)

    def describe(self) -> Iterator[Metric]:
        """The families without values, which a registry checks for duplicates."""
        for metric in METRICS:
            yield family(metric, {}, self._labels)


def family(
    metric: declarations.Metric, reading: declarations.Reading, labels: Mapping[str, str]
) -> CounterMetricFamily | GaugeMetricFamily:
    """The samples of one metric: one, or one for each value of its label."""
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    names = [*labels, metric.label] if metric.label else [*labels]
    made = kind(PREFIX + metric.name, metric.says, labels=names)
    values = reading if isinstance(reading, Mapping) else {"": reading}
    for value, number in values.items():
        made.add_metric([*labels.values(), value] if metric.label else [*labels.values()], number)
    return made


def export(
    cache: PrefixCacheManager, labels: Mapping[str, str] | None = None, registry: CollectorRegistry = REGISTRY
) -> PrefixCacheCollector:
    """Have `registry` ask this cache at each scrape; gives the collector, to be unregistered.

    Raises `ValueError` where the registry has the metrics of another cache already: several caches of one process
    need a registry each.
    """
    collector = PrefixCacheCollector(cache, labels)
    registry.register(collector)
    return collector
