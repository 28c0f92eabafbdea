"""The prefix cache's scenarios of what goes wrong: shutdown and failure at each point, threads that die, waits that run
out. Numbers are those of the catalogue of scenarios (tests/scenario/README.md)."""

from __future__ import annotations

from typing import Any

from palimpsest.errors import ShutdownError, StepConsumedError, WaitTimeoutError, WriteFailedError

from .cache_scenarios import ROW
from .memory import InjectedError
from .model import hit, more, prefill
from .scenario import Registry
from .script import Script

FAULT_SCENARIOS = Registry()
scenario = FAULT_SCENARIOS.add

# ------------------------------------------------------------------ shutdown at each point

CLOSED = (ShutdownError, WriteFailedError, StepConsumedError)


def closed_beside(s: Script) -> None:
    """Let another thread shut the cache down, whenever the schedule says."""
    s.beside("closer", s.cache.shutdown)


@scenario("S78", "shut down at each point of a save and of one that waits for the last write", allows=CLOSED)
def shutdown_while_a_save_waits(s: Script) -> None:
    closed_beside(s)
    s.step({"a": prefill([0], 2)})
    s.step({"a": more([0, 1], 2)})


@scenario("S78", "shut down while a save waits for a page", options={"staging_depth": 1}, allows=CLOSED)
def shutdown_while_a_page_is_waited_for(s: Script) -> None:
    with s.setup():
        s.step({"a": prefill([0], 2)})
    closed_beside(s)
    s.step({"a": more([0, 1], 2)})


@scenario("S78", "shut down while a save flushes", options={"gpu_staging_bytes": 2 * ROW}, allows=CLOSED)
def shutdown_while_a_save_flushes(s: Script) -> None:
    with s.setup():
        s.step({"a": prefill([0], 2)}, "d")
    closed_beside(s)
    s.step({"b": prefill([1], 2)}, "d")


@scenario("S76", "shut down while a hit is fetched and built", allows=CLOSED)
def shutdown_while_a_step_is_built(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
        step = s.step({"b": hit([0, 1], 2, 1)})
    closed_beside(s)
    s.build(step)


# ------------------------------------------------------------------ failure at each point

FAILED: dict[str, Any] = {"faults": 1, "allows": (InjectedError, WriteFailedError)}


@scenario("S49", "each copy of a save and of a hit on it fails in turn", **FAILED)
def failure_of_a_hit(s: Script) -> None:
    s.run({"a": prefill([0], 2)})
    s.run({"b": hit([0, 1], 2, 1)})


@scenario("S49", "each copy of a deferred write and of a hit on it fails in turn", **FAILED)
def failure_of_a_deferred_write(s: Script) -> None:
    s.run({"a": prefill([0], 2)}, "d")
    s.run({"b": hit([0, 1], 2, 1)}, "d", finished=["a"])


@scenario("S49", "each copy of a read and of the reuse of its block fails in turn", **FAILED)
def failure_of_a_delayed_read(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.build(s.step({"c": hit([0, 1], 2, 1)}, finished=["a"]))
    s.step({"b": prefill([0], 2)})


@scenario("S49", "each copy of a same-step hit fails in turn", **FAILED)
def failure_of_a_same_step_hit(s: Script) -> None:
    with s.setup():
        s.run({"z": prefill([0], 2)})
    s.run({"a": prefill([0], 2), "b": hit([0, 1], 2, 1)}, finished=["z"])


@scenario("S49", "each copy of a step of two requests fails in turn, and nobody waits for the other's rows", **FAILED)
def failure_of_a_batch(s: Script) -> None:
    s.run({"a": prefill([0], 2), "b": prefill([1], 2)})
    s.run({"a": more([0, 2], 2), "b": more([1, 3], 2)})


@scenario("S53", "each copy of a flush fails in turn", {"gpu_staging_bytes": 2 * ROW}, **FAILED)
def failure_of_a_flush(s: Script) -> None:
    s.step({"a": prefill([0], 2)}, "d")
    s.step({"b": prefill([1], 2)}, "d")


class DeathError(BaseException):
    """Ends a thread of the package for good."""


@scenario(
    "S61", "a committer that dies is not waited for", faults=1, error=DeathError, allows=(DeathError, WriteFailedError)
)
def committer_dies(s: Script) -> None:
    s.run({"a": prefill([0], 2)}, "d")
    s.run({"b": hit([0, 1], 2, 1)}, "d", finished=["a"])


@scenario("S61", "each wait runs out in turn: it says so, and nothing is held", timeouts=1, allows=(WaitTimeoutError,))
def wait_runs_out(s: Script) -> None:
    s.run({"a": prefill([0], 2)})
    s.run({"b": hit([0, 1], 2, 1)})


@scenario(
    "S17", "copies that do not land in time are raised for and never built", slow_device=True, timeouts=1,
    allows=(WaitTimeoutError, WriteFailedError),
)  # fmt: skip
def copies_stall(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 1)}))
    s.idle()
