"""The page in a real browser, by what a person looks for on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from palimpsest.cli import main
from palimpsest_model_check.replay.machine import load
from palimpsest_model_check.view.of_trace import picture_of
from palimpsest_model_check.view.open import open_picture
from palimpsest_model_check.view.page import page as page_of
from palimpsest_model_check.view.strips import Piece
from tests.view.conftest import MODEL

pytestmark = pytest.mark.browser
WIDE, NARROW = 1400, 640


@pytest.fixture(scope="module")
def page(files):
    """The counterexample's page."""
    out = files / "counterexample.html"
    assert main(["view", str(files / f"{MODEL}.json"), "-o", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def picture(files):
    return open_picture(files / f"{MODEL}.json")


@pytest.fixture
def opened(browser, page):
    browser.open(page, WIDE)
    return browser


def text_of(browser, selector: str) -> str:
    return browser.driver.find_element(By.CSS_SELECTOR, selector).text


def press(browser, *keys: str) -> None:
    browser.driver.find_element(By.TAG_NAME, "body").send_keys(*keys)
    browser.settle()


def at_moment(browser, number: int, plot: str, row: int) -> ActionChains:
    """A pointer on a moment, in a row of a figure."""
    place = browser.run(
        "const s = palimpsest.seen(), box = document.getElementById(arguments[1] + '-plot').getBoundingClientRect();"
        "const row = arguments[1] === 'lanes' ? 24 + 46 * (arguments[2] + 0.5) : 22 * (arguments[2] - s.top);"
        "return [box.left + 1 + (arguments[0] - s.start) / s.span * (box.width - 2), box.top + row];",
        number,
        plot,
        row,
    )
    chain = ActionChains(browser.driver)
    chain.w3c_actions.pointer_action.move_to_location(round(place[0]), round(place[1]))
    return chain


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_lanes_verdict_and_failing_step_are_there_at_both_widths(browser, page, picture, width):
    browser.open(page, width)
    lanes = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, "#lane-names div")]
    assert lanes == list(picture.lanes)
    names = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, "#strip-names div") if each.text]
    assert any("page" in name for name in names)
    verdict = text_of(browser, "#verdict")
    assert "fails" in verdict
    assert "A staging page is not reclaimed while" in verdict
    assert "holders" in text_of(browser, "#values")
    failing = browser.driver.find_element(By.CSS_SELECTOR, "#lanes-plot .band.failing")
    box = browser.run("return arguments[0].getBoundingClientRect().toJSON()", failing)
    plot = browser.run("return document.getElementById('lanes-plot').getBoundingClientRect().toJSON()")
    assert plot["left"] <= box["left"] < box["right"] <= plot["right"]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0, "it asks the network for nothing"
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.complaints() == []


def test_the_failing_step_is_selected_first_and_its_changes_are_told(opened, picture):
    assert opened.seen()["selected"] == picture.failure.at
    detail = text_of(opened, "#detail")
    assert picture.moments[-1].action in detail
    assert "leads to a state that must not be" in detail


def test_arrow_keys_step_and_f_returns_to_the_failing_step(opened, picture):
    last = len(picture.moments) - 1
    press(opened, Keys.ARROW_LEFT)
    assert opened.seen()["selected"] == last - 1
    assert f"{picture.moments[-2].number} of" in text_of(opened, "#detail h2")
    press(opened, Keys.HOME)
    assert opened.seen()["selected"] == 0
    press(opened, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert opened.seen()["selected"] == 2
    press(opened, "f")
    assert opened.seen()["selected"] == last
    press(opened, Keys.ESCAPE)
    assert opened.seen()["selected"] is None
    assert "No step is selected" in text_of(opened, "#detail")


def test_shift_and_an_arrow_stay_in_the_lane(opened, picture):
    press(opened, Keys.SHIFT + Keys.ARROW_LEFT)
    to = opened.seen()["selected"]
    assert picture.moments[to].lane == picture.moments[-1].lane


def test_a_click_on_an_event_highlights_everything_that_it_touched(opened, picture):
    at = next(at for at, each in enumerate(picture.moments) if each.action == "ClaimPageEnd")
    opened.run("palimpsest.select(null); palimpsest.goTo(arguments[0] - 4)", at)
    opened.settle()
    at_moment(opened, at + 1, "lanes", picture.lanes.index(picture.moments[at].lane)).click().perform()
    seen = opened.seen()
    assert seen["selected"] == at
    assert tuple(seen["touched"]) == picture.touches[at]
    marked = [each.text for each in opened.driver.find_elements(By.CSS_SELECTOR, "#strip-names .touched")]
    assert marked == [picture.strips[row].name for row in picture.touches[at]][: len(marked)] != []
    assert "page" in text_of(opened, "#detail")
    outlined = opened.run(
        "return [...Bokeh.documents[0]._all_models.values()].find(m => m.name === 'touched pieces').data.y.length"
    )
    assert outlined >= len(picture.touches[at])


def test_a_click_on_a_strip_leads_to_what_made_it_so(opened, picture):
    opened.run("palimpsest.select(null); palimpsest.goTo(0.5)")
    opened.settle()
    row, strip = next((row, each) for row, each in enumerate(picture.strips) if each.group == "page")
    piece = strip.pieces[1]
    at_moment(opened, piece.start + 1, "strips", row).click().perform()
    assert opened.seen()["selected"] == piece.start


def test_hovering_tells_what_an_event_is(opened, picture):
    opened.run("palimpsest.goTo(0.5)")
    opened.settle()
    at_moment(opened, 2, "lanes", picture.lanes.index(picture.moments[1].lane)).perform()
    shadows = """
        const found = [];
        const walk = (root) => root.querySelectorAll('*').forEach((each) => {
            if (each.classList.contains('tip') && each.getBoundingClientRect().width) found.push(each.textContent);
            if (each.shadowRoot) walk(each.shadowRoot);
        });
        walk(document);
        return found;"""
    told = next(said for _ in range(100) if (said := opened.run(shadows)))
    assert picture.moments[1].action in told[0]
    assert picture.moments[1].lane in told[0]


def test_only_what_it_touches_leaves_the_other_strips_out(opened, picture):
    press(opened, "t")
    assert opened.seen()["rows"] == len(picture.touches[-1])
    press(opened, "t")
    assert opened.seen()["rows"] == len(picture.strips)


def test_the_wheel_and_the_keys_move_and_zoom(opened):
    opened.run("palimpsest.goTo(0.5)")
    before = opened.seen()
    press(opened, "+")
    assert opened.seen()["span"] < before["span"]
    press(opened, Keys.PAGE_DOWN)
    assert opened.seen()["start"] > before["start"]


def test_states_can_be_told_without_color(browser, files, page):
    browser.open(page, WIDE)
    drawn = browser.run(
        "return [...Bokeh.documents[0]._all_models.values()].filter(m => /^pieces/.test(m.name ?? ''))"
        ".map(m => [m.name, m.data.y.length])"
    )
    assert sum(count > 0 for _, count in drawn) >= 3, "each kind of state has a hatch of its own"
    said = browser.run(
        "return [...Bokeh.documents[0]._all_models.values()].find(m => m.name === 'piece labels').data.text.join(' ')"
    )
    assert "HELD" in said or "free" in said
    assert "✗" in browser.run(
        "return [...Bokeh.documents[0]._all_models.values()].find(m => m.name === 'event labels').data.text.join(' ')"
    )


def test_a_trace_and_a_schedule_are_drawn_without_a_complaint(browser, files, schedule):
    assert main(["view", str(files / "rejected.ndjson"), "-o", str(files / "rejected.html")]) == 0
    for page, says in ((files / "rejected.html", "Whoever is woken"), (schedule, "RecordBeforeWake")):
        browser.open(page, NARROW)
        assert says in text_of(browser, "#verdict")
        assert browser.seen()["selected"] is not None
        assert browser.complaints() == []


def test_ten_thousand_events_weigh_at_most_ten_megabytes(files, tmp_path):
    """As many as it takes of a real run, one after the other, with other requests in each."""
    lines = (files / "accepted.ndjson").read_text().splitlines(keepends=True)
    config, events = load(files / "accepted.ndjson")
    watched = picture_of("many", config, events)
    times = -(-10_000 // len(events))
    many = replace(
        watched,
        moments=watched.moments * times,
        touches=watched.touches * times,
        strips=tuple(
            replace(
                strip,
                name=f"{strip.name} {turn}",
                pieces=tuple(moved(piece, turn, len(lines)) for piece in strip.pieces),
            )
            for turn in range(times)
            for strip in watched.strips
        ),
    )
    assert len(many.moments) >= 10_000
    assert len(page_of(many).encode()) < 10_000_000


def moved(piece: Piece, turn: int, by: int) -> Piece:
    return piece._replace(start=piece.start + turn * by, stop=piece.stop + turn * by, label=f"{piece.label} {turn}")
