"""Headless Chromium, Debian's, for tests and benchmarks that look at a page as a person does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

#: why no page is looked at, where there is no browser
MISSING = "chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)"
_OPTIONS = (
    "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-quic", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--force-device-scale-factor=1",
)  # fmt: skip


def is_there() -> bool:
    """Whether a browser and its driver are installed."""
    return all(map(shutil.which, ("chromium", "chromedriver")))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the time of a `with` block."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="palimpsest-browser-", ignore_cleanup_errors=True) as profile:
        for option in (*_OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """What a person does with a page, and sees of it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        driver.set_script_timeout(60)

    def open(self, page: Path, width: int, height: int = 1000) -> None:
        """Open a page of `palimpsest view` in a window of this size, and wait until it is drawn."""
        self.driver.set_window_size(width, height)
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(page.resolve().as_uri())
        WebDriverWait(self.driver, 60, 0.05).until(lambda _: self.run("return Boolean(window.palimpsest)"))
        self.settle()

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script of the page gives."""
        return self.driver.execute_script(script, *arguments)

    def measure(self, script: str) -> Any:
        """What a script hands to `done`."""
        return self.driver.execute_async_script(f"const done = arguments[arguments.length - 1]; {script}")

    def settle(self) -> None:
        """Wait until nothing is to be drawn."""
        WebDriverWait(self.driver, 30, 0.02).until(lambda _: not self.run("return palimpsest.drawing()"))

    def seen(self) -> dict[str, Any]:
        """What the page shows: window, selection, what is touched."""
        self.settle()
        return dict(self.run("return palimpsest.seen()"))

    def complaints(self) -> list[str]:
        """What the console says that is worse than information."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] not in ("INFO", "DEBUG")]
