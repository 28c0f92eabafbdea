"""A report as a page and as a comment: the verdict first, each kind of evidence, each property, each finding."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console
from selenium.webdriver.common.by import By

from palimpsest.cli import main
from palimpsest.prefix_cache.controller import PrefixCacheController as Controller
from palimpsest_model_check.explore.saved import Schedule
from palimpsest_model_check.explore.scenarios import SCENARIOS
from palimpsest_model_check.verify import of_code
from palimpsest_model_check.verify import run as of_run
from palimpsest_model_check.verify.evidence import Detail, Evidence, Report, Verdict
from palimpsest_model_check.verify.findings import findings
from palimpsest_model_check.verify.kind import Found, Kind, Kinds, Setting
from palimpsest_model_check.verify.markdown import headline, markdown
from palimpsest_model_check.verify.properties import proven
from palimpsest_model_check.verify.report_page import report_page
from palimpsest_model_check.words import load_words
from tests.slip import SCENARIO, woken_before_the_record
from tests.view.browser import Browser
from tests.view.conftest import MODEL

BEGUN = "2026-01-01T00:00:00+00:00"
MODELS = Detail(("model", "verdict"), (("takeover", "ok"), ("<late>", "ReadIntegrity")))


def evidence(kind: str, verdict: Verdict, says: str = "", detail: Detail | None = None) -> Evidence:
    return Evidence(kind, f"{kind} | are right", 12345, "things", verdict, 61.0, says, detail)


def report(*kinds: Evidence) -> Report:
    return Report("1.0", True, BEGUN, kinds, 61.0 * len(kinds))


FAILING = report(
    evidence("models", Verdict.FAILS, "<late>: ReadIntegrity", MODELS),
    evidence("schedules", Verdict.HOLDS),
    evidence("device", Verdict.SKIPPED, "no accelerator"),
)


def test_the_headline_is_the_verdict():
    assert headline(FAILING) == "✗ fails: models"
    assert headline(report(evidence("a", Verdict.HOLDS))) == "✓ everything holds"
    assert "1 of 2" in headline(report(evidence("a", Verdict.HOLDS), evidence("b", Verdict.SKIPPED)))
    assert headline(report(evidence("b", Verdict.SKIPPED))) == "✗ nothing was shown"
    assert headline(report()) == "✗ nothing was shown"


def test_each_property_has_its_words_and_each_of_the_specification_kills_a_mutant():
    found = {each.name: each for each in proven()}
    assert found["ReadIntegrity"].says == load_words()["ReadIntegrity"]
    assert ("mutant-late-plan", "mutant-late-plan") in found["ReadIntegrity"].mutants
    assert any("premise" in mutant for mutant, _ in found["BudgetExact"].mutants)
    assert all(each.models or each.mutants for each in found.values())


def test_the_comment_fits_a_screen_and_says_the_verdict_first(files):
    found = findings([files / f"{MODEL}.json"])
    text = markdown(FAILING, proven(), found)
    lines = text.splitlines()
    assert lines[0] == "### Palimpsest: ✗ fails: models"
    assert len(lines) <= 40
    assert "| ✗ | `models` | models \\| are right | 12,345 things | 61 s | <late>: ReadIntegrity |" in lines
    assert any("**PageExclusive**: A staging page" in line for line in lines)


def test_files_in_which_nothing_fails_are_no_findings(files):
    assert findings([files / "accepted.ndjson"]) == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 640])
def test_the_page_shows_verdict_evidence_properties_and_the_counterexample(
    browser: Browser,
    files: Path,
    width: int,
):
    page = files / "report.html"
    page.write_text(report_page(FAILING, proven(), findings([files / f"{MODEL}.json"])))
    driver = browser.driver
    driver.set_window_size(width, 1000)
    driver.get(page.as_uri())

    def text(selector: str) -> str:
        return driver.find_element(By.CSS_SELECTOR, selector).text

    assert text("#verdict") == "✗ fails: models"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#evidence tbody tr")) == 3
    assert "skipped" in text("#evidence .skipped")
    assert "<late>" in text("#models table"), "the table of what fails is open, and text is text"
    assert "mutant-late-plan" in text("#properties")
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.run(
        "return [...document.querySelectorAll('.wide')].every(each => each.scrollWidth <= each.clientWidth)"
    )
    driver.switch_to.frame(driver.find_element(By.CSS_SELECTOR, "iframe"))
    try:
        drawn = "const done = arguments[0]; (function wait() {window.palimpsest ? done(true) : setTimeout(wait, 20)})()"
        assert driver.execute_async_script(drawn)
        assert "PageExclusive" in text("#verdict")
        assert browser.run("return palimpsest.seen().selected") is not None
    finally:
        driver.switch_to.default_content()
    assert browser.complaints() == []


@pytest.fixture
def finding(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only kind of evidence finds a counterexample."""

    def run(setting: Setting) -> Found:
        setting.findings.mkdir(parents=True, exist_ok=True)
        (setting.findings / f"{MODEL}.json").write_bytes((files / f"{MODEL}.json").read_bytes())
        return Found(1, "models", ["one is wrong"])

    monkeypatch.setattr(of_run, "KINDS", Kinds.of(Kind("models", "each is right", run)))


@pytest.mark.usefixtures("finding")
def test_verify_writes_the_page_and_the_comment_with_what_it_found_and_not_what_an_earlier_run_did(tmp_path):
    page, comment, out = (tmp_path / name for name in ("report.html", "report.md", "findings"))
    out.mkdir()
    (out / "older.json").write_text("{}")
    os.utime(out / "older.json", (0, 0))
    assert main(["verify", "--html", str(page), "--markdown", str(comment), "--out", str(out)]) == 1
    assert comment.read_text().startswith("### Palimpsest: ✗ fails: models\n")
    assert f"- `{MODEL}.json`: step 12" in comment.read_text()
    assert "✗ fails: models" in page.read_text()
    assert "srcdoc=" in page.read_text()


def test_explore_saves_the_schedule_of_what_it_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(Controller, "_write_pool", woken_before_the_record)
    monkeypatch.setattr(of_code, "SCENARIOS", {SCENARIO: SCENARIOS[SCENARIO]})
    setting = Setting(True, 1, 0, Console(file=io.StringIO()), tmp_path / "found")
    assert of_code.explore.evidence(setting).verdict is Verdict.FAILS
    (saved,) = (tmp_path / "found").iterdir()
    assert "RecordBeforeWake" in Schedule.load(saved).finding
