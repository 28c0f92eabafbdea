"""A pytest plug-in: every test that makes a prefix cache has its trace held against the specification.

One line turns it on: `pytest_plugins = ["palimpsest.testing"]` in the suite's top conftest.py, or `-p
palimpsest.testing` on the command line. docs/testing.md says what it reports and what it does not see.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

from palimpsest.actions import ACTIONS
from palimpsest.trace.sinks import Tag

__all__ = ["Hooks", "ReplayPlugin"]

_FORGES = "forges(reason): the test changes the cache's internals, so that its trace is not one of the protocol"
_EVENTS_SHOWN = 8


class Hooks:
    """What a suite may tell the plug-in, as functions of its conftest.py."""

    @pytest.hookspec(firstresult=True)
    def pytest_palimpsest_tag(self) -> Tag | None:
        """How the identity of a row is read out of it, where a suite's rows carry one: a function of a key and its
        rows that gives an integer array with a line per row, or None. Then each row is followed by its identity."""
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plug-in's options."""
    group = parser.getgroup("palimpsest", "replay of the traces of prefix caches")
    group.addoption(
        "--palimpsest-tlc", type=int, default=0, metavar="N", help="TLC replays N traces of the session, too (0)"
    )
    group.addoption("--palimpsest-seed", type=int, default=0, metavar="N", help="of the traces that TLC replays (0)")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let suites answer `Hooks`."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_configure(config: pytest.Config) -> None:
    """Start to record when the session does."""
    config.addinivalue_line("markers", _FORGES)
    config.pluginmanager.register(ReplayPlugin(config), "palimpsest-replay")


class ReplayPlugin:
    """Records in a session, replays at the end of each test, and reports at the end of all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._recording = ExitStack()
        self._tlc: list[Any] = []
        self._tlc_error = ""
        self.recorder: Any = None

    @property
    def untaken(self) -> list[str]:
        """The actions of the specification that no accepted trace of this session has."""
        return sorted(ACTIONS.keys() - self.recorder.actions.keys())

    def pytest_sessionstart(self) -> None:
        """Record from here on."""
        from palimpsest_model_check.replay.recording import Recorder

        options = self._config.option
        tag = self._config.hook.pytest_palimpsest_tag()
        self.recorder = Recorder(tag, options.palimpsest_tlc, options.palimpsest_seed)
        self._recording.enter_context(self.recorder.recording())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Caches that are made now are this test's."""
        forges = item.get_closest_marker("forges") is not None
        self.recorder.test = None if forges else item.nodeid
        try:
            return (yield)
        finally:
            self.recorder.test = "outside of any test"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """A test whose trace is rejected has failed."""
        result = yield
        self._replay(last=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        """What its fixtures do at its end is replayed, too."""
        try:
            result = yield
        except BaseException:
            self.recorder.advance(last=True)  # it has failed already: what is left of its traces is no other test's
            raise
        self._replay(last=True)
        return result

    def _replay(self, *, last: bool) -> None:
        if rejected := self.recorder.advance(last=last):
            pytest.fail("\n".join(map(_explain, rejected)), pytrace=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Count what was never shut down, and let TLC take its sample."""
        self._recording.close()
        self.recorder.advance(last=True)
        self.recorder.put_away(list(self.recorder.open))
        if self.recorder.sampled:
            self._replay_in_tlc()
        if exitstatus == 0 and (self._tlc_error or not all(each.ok for each in self._tlc)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _replay_in_tlc(self) -> None:
        from palimpsest_model_check.errors import CheckError
        from palimpsest_model_check.tlc_replay import replay_in_tlc, windows

        traces = [(each.name, each.sink.config, each.sink.events) for each in self.recorder.sampled]
        try:
            self._tlc = replay_in_tlc([part for trace in traces for part in windows(*trace)])
        except CheckError as error:
            self._tlc_error = str(error)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how much was replayed, and which actions never occurred."""
        recorder = self.recorder
        if not recorder.traces:
            return
        missing = self.untaken
        terminalreporter.write_line(
            f"palimpsest: {recorder.traces} traces replayed, {recorder.actions.total():,} events, "
            f"{len(ACTIONS) - len(missing)} of the specification's {len(ACTIONS)} actions"
            + (f"; none of {', '.join(missing)}" if missing else "")
        )
        if self._tlc:
            accepted = sum(each.ok for each in self._tlc)
            events = sum(each.events for each in self._tlc)
            terminalreporter.write_line(
                f"palimpsest: TLC accepts {accepted} of {len(self._tlc)} traces, {events:,} events"
            )
        for line in [str(each) for each in self._tlc if not each.ok] + [self._tlc_error] * bool(self._tlc_error):
            terminalreporter.write_line(f"palimpsest: {line}", red=True)


def _explain(recording: Any) -> str:
    """The verdict, and what the threads did before."""
    lines = [
        f"  {event.seq:>6} {event.thread}: {event.action} {_short(event.args)}"
        for event in recording.before(_EVENTS_SHOWN)
    ]
    return "\n".join([f"the specification rejects the trace of {recording.rejected}", *lines])


def _short(args: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in args.items())
    return f"({text[:100]}...)" if len(text) > 100 else f"({text})"
