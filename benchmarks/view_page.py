"""How fast a page of `palimpsest view` is: its size, the time until it is painted, and frames a second while scrolling.

    python -m benchmarks.view_page --events 10000

Makes a trace by serving requests, draws it, and opens the page in headless Chromium several times. Limits are 10 MB,
2 s and 30 frames a second; exits with 1 when the best of the runs at a width misses one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from palimpsest.cli import main as palimpsest
from tests.view.browser import Browser, chromium

LIMITS = {"MB": 10.0, "painted ms": 2000.0, "across frames/s": 30.0, "down frames/s": 30.0}

_SCROLL = """
    const began = performance.now(), ticks = [began];
    let count = 0;
    const tick = (now) => {
        ticks.push(now);
        MOVE;
        count++;
        if (now - began < 1000 * SECONDS) requestAnimationFrame(tick);
        else {
            const gaps = ticks.slice(1).map((each, place) => each - ticks[place]).sort((a, b) => a - b);
            done([count * 1000 / (now - began), gaps[Math.floor(gaps.length * 0.99)]]);
        }
    };
    requestAnimationFrame(tick);"""
#: a screen a second across, ten rows a second down
_ACROSS = _SCROLL.replace("MOVE", "palimpsest.goTo(0.5 + (now - began) / 1000 * palimpsest.seen().span)")
_DOWN = _SCROLL.replace("MOVE", "palimpsest.scrollTo((now - began) / 100)")


def make_trace(folder: Path, events: int) -> Path:
    """A real trace with at least so many events, cut to that many."""
    for requests in itertools.count(max(events // 40, 1), max(events // 80, 1)):
        path = folder / "served.ndjson"
        palimpsest(["demo", "--requests", str(requests), "--no-tlc", "--trace-out", str(path)])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if len(lines) > events:
            path.write_text("".join(lines[: events + 1]), encoding="utf-8")
            return path
    raise AssertionError


def measure(browser: Browser, page: Path, width: int, seconds: float) -> dict[str, float]:
    """One run: in a browser that has just started, and again; scrolls so many seconds in each direction."""
    browser.open(page, width)
    first = browser.run("return palimpsest.painted")
    browser.open(page, width)
    across, down = (browser.measure(script.replace("SECONDS", str(seconds))) for script in (_ACROSS, _DOWN))
    return {
        "MB": page.stat().st_size / 1e6,
        "first painted ms": first,
        "painted ms": browser.run("return palimpsest.painted"),
        "across frames/s": across[0],
        "across 99% ms": across[1],
        "down frames/s": down[0],
        "down 99% ms": down[1],
    }


def main() -> int:
    """Measure, print each run, and say whether the best ones keep the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of scrolling in each direction (3)")
    parser.add_argument("--widths", type=int, nargs="+", default=[1400, 640], help="of the window, in pixels")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = make_trace(Path(folder), args.events)
        page, start = trace.with_suffix(".html"), time.perf_counter()
        palimpsest(["view", str(trace), "-o", str(page)])
        print(f"drawn in {time.perf_counter() - start:.1f} s")
        runs = []
        for width, _ in itertools.product(args.widths, range(args.runs)):
            with chromium() as browser:
                runs.append({"width": width, **measure(browser, page, width, args.seconds)})
            print(json.dumps({name: round(value, 1) for name, value in runs[-1].items()}), flush=True)
    missed = [
        f"{name} at {width} pixels"
        for width, (name, limit) in itertools.product(args.widths, LIMITS.items())
        if not _kept(name, limit, [run[name] for run in runs if run["width"] == width])
    ]
    print(f"missed: {', '.join(missed)}" if missed else "all limits are kept")
    return 1 if missed else 0


def _kept(name: str, limit: float, values: list[float]) -> bool:
    return max(values) >= limit if "frames" in name else min(values) <= limit


if __name__ == "__main__":
    sys.exit(main())
