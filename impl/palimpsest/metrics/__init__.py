"""Metrics for Prometheus (extra `[metrics]`): `export(cache)` registers a collector.

A scrape reads plain integers. It takes no lock of the cache, so that it can neither wait for a step nor delay one.
"""

from palimpsest.metrics.collector import PrefixCacheCollector, export
from palimpsest.metrics.mirror import MirrorCollector

__all__ = ["MirrorCollector", "PrefixCacheCollector", "export"]
