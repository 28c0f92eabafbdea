"""Metrics: what they count, what a scrape must not do, and that docs and dashboard name the ones that exist."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from palimpsest.host_mirror.types import MirrorStats
from palimpsest.metrics import MirrorCollector, export
from palimpsest.metrics.declarations import METRICS
from palimpsest.prefix_cache.interface import HIDDEN_KEY, ModelCachePolicy
from palimpsest.prefix_cache.manager import PrefixCacheManager
from palimpsest.sync import StandardSync
from tests.support import PATIENT_S, Background, Script, View, held_at, hit, more, prefill

DOCS = Path(__file__).parents[2] / "docs"
NAME = "palimpsest:prefix_cache_"


def scrape(cache: PrefixCacheManager) -> CollectorRegistry:
    """A registry that reads this cache."""
    registry = CollectorRegistry()
    export(cache, {"engine": "0"}, registry)
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """One sample of a scrape."""
    return registry.get_sample_value(NAME + name, {"engine": "0", **labels})


def test_a_run_of_steps_is_counted(script, eager):
    s = script(ModelCachePolicy(deferred_keys=frozenset({"late"})), eager=eager)
    registry = scrape(s.cache)
    s.run({"a": prefill([0, 1], 8)}, "late")
    s.run({"a": more([0, 1, 2], 8), "b": hit([0, 1, 3], 8, 2)}, "late")
    s.idle(finished=["a", "b"])
    s.settle()
    s.idle()
    row_bytes = 16
    expected = {
        "queries": 18,
        "hits": 8,
        "hit_requests": 1,
        "steps": 2,
        "step_tokens": 11,
        "replanned_hits": 0,
        "failed_writes": 0,
        "rejected_rows": 0,
    }
    assert {name: value(registry, f"{name}_total") for name in expected} == expected
    for key in (HIDDEN_KEY, "late"):
        assert value(registry, "rows_saved_total", key=key) == 11
        assert value(registry, "rows_served_total", key=key) == 8
        assert value(registry, "rows_written_total", key=key) == 11
    assert value(registry, "copied_bytes_total", stage="fetch") == 2 * 8 * row_bytes
    assert value(registry, "copied_bytes_total", stage="deliver") == 11 * row_bytes
    assert value(registry, "copy_seconds_total", stage="pool") > 0
    assert value(registry, "writes_total") == 5  # three of the steps' requests, and a deferred one for each request
    resting = ("pending_reads", "unconsumed_steps", "pending_writes", "staging_pages_in_use", "budget_bytes_in_use")
    assert {name: value(registry, name) for name in resting} == dict.fromkeys(resting, 0)


def test_a_prompt_that_the_scheduler_tells_is_counted_whole(script):
    s = script()
    registry = scrape(s.cache)
    told = SimpleNamespace(req_id="a", num_computed_tokens=0, block_ids=[[0, 1]], prompt_token_ids=list(range(30)))
    untold = SimpleNamespace(req_id="b", num_computed_tokens=0, block_ids=[[2]])
    schedule = SimpleNamespace(
        scheduled_new_reqs=[told, untold], finished_req_ids=(), num_scheduled_tokens={"a": 4, "b": 3}
    )
    s.parts = {"a": prefill([0, 1], 4), "b": prefill([2], 3)}
    s.view.order, s.view.slots = ["a", "b"], torch.tensor([0, 1, 2, 3, 8, 9, 10])
    for _ in range(2):  # tried again: counted when it is published, once
        s.cache.new_step_starts(schedule)
    s.cache.discard_step(s.save())
    assert value(registry, "queries_total") == 30 + 3


def test_what_is_on_its_way_is_seen_while_it_is(script):
    s = script(eager=True, staging_depth=3)
    registry = scrape(s.cache)
    step_id = s.step({"a": prefill([0], 4)})
    assert value(registry, "unconsumed_steps") == value(registry, "staging_pages_in_use") == 1
    assert value(registry, "staging_pages") == 3
    s.cache.discard_step(step_id)
    assert value(registry, "unconsumed_steps") == value(registry, "staging_pages_in_use") == 0


def test_a_wait_for_a_page_is_counted_with_its_time(script):
    s = script(eager=True, staging_depth=1)
    registry = scrape(s.cache)
    first = s.step({"a": prefill([0], 4)})
    s.begin({"a": more([0, 1], 4)})
    with held_at(s.cache._controller.staging._freed, "wait") as gate:
        save = Background(s.save)
        gate.wait_until_reached()
        assert value(registry, "staging_waits_total") == 1
        gate.open()
        s.cache.discard_step(first)
        s.cache.discard_step(save.result())
    assert value(registry, "staging_wait_seconds_total") > 0


class Watched(StandardSync):
    """Locks that say who takes them."""

    def __init__(self) -> None:
        self.takers: list[str] = []

    def lock(self):
        return WatchedLock(self.takers)


class WatchedLock:
    def __init__(self, takers: list[str]) -> None:
        self._lock, self._takers = threading.Lock(), takers

    def acquire(self, *args, **kwargs) -> bool:
        self._takers.append(threading.current_thread().name)
        return self._lock.acquire(*args, **kwargs)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc) -> None:
        self.release()


def test_a_scrape_takes_no_lock_of_the_cache():
    sync = Watched()
    cache = PrefixCacheManager(Script().cache.config, View(), eager=True, sync=sync)
    Background(lambda: generate_latest(scrape(cache)), "scraper").result()
    cache.new_step_starts(SimpleNamespace(scheduled_new_reqs=[], finished_req_ids=(), num_scheduled_tokens={}))
    cache.shutdown()
    assert "scraper" not in sync.takers
    assert sync.takers  # the others do


def test_a_scrape_does_not_wait_for_an_engine_that_hangs_inside_its_locks(script):
    s = script(eager=False)
    registry = scrape(s.cache)
    s.begin({"a": prefill([0], 4)})
    # The claim is done under the state lock and the task lock.
    with held_at(s.cache._slot_status, "claim") as gate:
        save = Background(s.save)
        gate.wait_until_reached()
        assert s.cache._state_lock.locked()
        assert s.cache._controller.lock.locked()
        with s.cache._controller.staging._lock:
            text = Background(lambda: generate_latest(registry).decode(), "scraper").result()
        assert save.running
    assert f'{NAME}steps_total{{engine="0"}} 0.0' in text
    s.cache.discard_step(save.result())


def test_a_scrape_while_the_engine_runs_is_never_an_error(script):
    s = script(eager=False)
    registry, stop = scrape(s.cache), threading.Event()
    began = threading.Event()

    def scrape_on():
        while not stop.is_set():
            generate_latest(registry)
            began.set()

    scraper = Background(scrape_on, "scraper")
    assert began.wait(PATIENT_S)
    for number in range(50):
        s.run({f"r{number}": prefill([number % 8], 4)}, f"key {number % 16}", finished=[f"r{number - 1}"])
    stop.set()
    scraper.result()
    assert value(registry, "steps_total") == 50


def test_a_cache_that_is_gone_gives_nothing():
    s = Script()
    registry = scrape(s.cache)
    s.close()
    s.cache = None
    assert NAME.encode() not in generate_latest(registry)


def test_two_caches_do_not_share_a_registry(script):
    registry = scrape(script().cache)
    with pytest.raises(ValueError, match="Duplicated"):
        export(script().cache, {"engine": "1"}, registry)


def test_a_metric_has_its_label_and_its_kind(script):
    text = generate_latest(scrape(script().cache)).decode()
    for metric in METRICS:
        kind = f"# TYPE {metric.exposed} {metric.kind}"
        assert kind in text, metric.name


def test_the_mirrors_reports_are_added_up():
    registry, collector = CollectorRegistry(), MirrorCollector({"engine": "0"})
    registry.register(collector)
    report = MirrorStats()
    report.data.update(cache_hits=[3], cache_misses=[2], host_to_device_bytes=[64])
    for each in (report, None, report):
        collector.add(each)
    found = {
        name: registry.get_sample_value(f"palimpsest:host_mirror_{name}_total", {"engine": "0"})
        for name in ("hot_row_hits", "hot_row_misses", "fetched_bytes")
    }
    assert found == {"hot_row_hits": 6, "hot_row_misses": 4, "fetched_bytes": 128}


# ---------------------------------------------------------------- docs

MIRROR = {f"palimpsest:host_mirror_{name}_total" for name in ("hot_row_hits", "hot_row_misses", "fetched_bytes")}
EXISTING = {metric.exposed for metric in METRICS} | MIRROR


def test_every_metric_that_the_dashboard_asks_for_exists_and_is_asked_for():
    text = (DOCS / "grafana/palimpsest.json").read_text()
    dashboard = json.loads(text)
    assert all(panel["targets"] for panel in dashboard["panels"])
    asked = set(re.findall(r"palimpsest:\w+", text))
    assert asked == EXISTING


def test_every_metric_of_the_page_exists():
    assert set(re.findall(r"palimpsest:\w+", (DOCS / "metrics.md").read_text())) == EXISTING


def test_the_generated_parts_of_the_docs_are_what_the_code_says():
    sys.path.insert(0, str(DOCS))
    try:
        import generate
    finally:
        sys.path.remove(str(DOCS))
    assert generate.stale() == {}, "run `make docs`"
