"""`palimpsest.testing` in a suite of somebody else: what it accepts, what it fails, and where."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.forges("the caches that are made here are those of the suites within")

CONFTEST = """
import pytest
from tests.support import Script, tag_of

pytest_plugins = ["palimpsest.testing"]

def pytest_palimpsest_tag():
    return tag_of

@pytest.fixture
def script():
    script = Script(eager=False, trace=None)
    yield script
    script.cache.shutdown()
"""

SOUND = """
from tests.support import hit, prefill

def test_a_hit(script):
    script.run({"a": prefill([0], 4)})
    script.run({"b": hit([0, 1], 4, 1)}, finished=["a"])

def test_nothing_of_the_cache():
    assert True
"""

RACE = """
from tests.support import prefill

def test_woken_first(script):
    # a committer that wakes its waiters before the record is there: mostly nobody is hurt, and the test passes
    controller = script.cache._controller
    def write_pool(tasks):
        write = controller.begin_pool_write(tasks)
        for key, slots, _, rows, _ in write.writes:
            controller._pool.write(key, slots, rows)
        controller._release_pages(tasks)
        controller.wake(tasks)
        controller.complete(tasks, write)
    controller._write_pool = write_pool
    script.run({"a": prefill([0], 4)})
    script.settle()

def test_after_it(script):
    script.run({"a": prefill([0], 4)})
"""


@pytest.fixture
def suite(pytester: pytest.Pytester):
    """Runs a suite with the plug-in."""
    pytester.makeconftest(CONFTEST)

    def run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


def test_a_suite_whose_traces_are_accepted_passes_and_says_what_was_replayed(suite):
    result = suite(SOUND)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["palimpsest: 1 traces replayed, * events, * of the specification's * actions; none of *"]
    )


def test_a_race_fails_its_test_at_the_event_although_the_test_itself_passes(suite):
    result = suite(RACE)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_woken_first*cache 1: event * (wake) rejected: *breaks *RecordBeforeWake*",
            "*palimpsest-committer: release_page*",
            "*palimpsest-committer: wake*",
        ]
    )


def test_a_test_that_forges_is_left_alone(suite):
    marked = "import pytest\n" + RACE.replace(
        "def test_woken_first", "@pytest.mark.forges('on purpose')\ndef test_woken_first"
    )
    suite(marked).assert_outcomes(passed=2)


def test_what_goes_wrong_at_a_fixtures_end_is_an_error_of_its_test(suite):
    ends = """
import pytest
from palimpsest.prefix_cache.staging import StagingBufferHolder
from tests.support import prefill

@pytest.fixture
def careless(script):
    yield script
    script.cache._controller.staging.release_page(0, [StagingBufferHolder.for_step(99)])

def test_careless(careless):
    careless.run({"a": prefill([0], 4)})
"""
    result = suite(ends)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*event * (release_page) rejected: guard it holds the page*"])


def test_a_rejected_trace_of_a_test_that_fails_at_its_end_is_not_blamed_on_the_next_one(suite):
    fails = RACE.replace("    script.settle()\n", "    script.settle()\n    raise OSError('of its own')\n")
    result = suite(
        "import pytest\n" + fails + "\n@pytest.fixture(autouse=True)\ndef ends():\n    yield\n    assert 0\n"
    )
    result.assert_outcomes(passed=1, failed=1, errors=2)
    result.stdout.no_fnmatch_line("*test_after_it*rejected*")


@pytest.mark.slow
def test_tlc_takes_a_sample_that_the_seed_draws(suite):
    many = """
import pytest
from tests.support import prefill

@pytest.mark.parametrize("tokens", range(1, 5))
def test_steps(script, tokens):
    script.run({"a": prefill([0], tokens)})
"""
    result = suite(many, "--palimpsest-tlc", "2", "--palimpsest-seed", "7")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["palimpsest: TLC accepts 2 of 2 traces, * events"])
