"""Scenarios of the host mirror: what its runner, its copy stream and the other ranks may do to one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palimpsest.kv_cache import KVCacheBlockCopy

from .mirror_driver import Driver, Request
from .mirror_script import MirrorScript
from .scenario import Body, Registry

MIRROR_SCENARIOS = Registry()


def scenario(number: str, purpose: str, **options: Any) -> Callable[[Body], Body]:
    """Registers a scenario of the mirror."""
    return MIRROR_SCENARIOS.add(number, purpose, options, script=MirrorScript)


@scenario("M01", "rows are mirrored behind a prefill while the draft layers still write; the page is clean behind both")
def spill_and_draft_rows(d: Driver) -> None:
    request = Request(1, [2], [1])
    d.step(request, range(2), request.move(1, 0, after=True))
    d.idle_until(1)


@scenario("M02", "rejected drafts are never mirrored, and their place is written again")
def drafts_are_rejected(d: Driver) -> None:
    request = Request(1, [2, 0], [1, 3])
    d.step(request, range(3), accepted=1)
    d.step(request, range(1, 3), request.move(1, 0, after=True), accepted=2)
    d.idle_until(1)


@scenario("M03", "a page on its way to the host is copied to another block once it is there", eager=False)
def copied_while_moving(d: Driver) -> None:
    request = Request(1, [2], [1])
    d.step(request, range(2), accepted=2)
    d.start(request.move(1, 0))
    d.start(host_block_copies=[KVCacheBlockCopy(2, 3)])
    d.idle_until(1)


@scenario("M04", "a page comes back from the host and is appended to")
def restored_and_appended(d: Driver) -> None:
    request = Request(1, [2], [1])
    d.import_rows(request, range(1))
    d.step(request, range(1, 2), request.restore(1, 0), accepted=1)
    d.idle_until(1)


@scenario("M05", "a page comes back while it is on its way to the host", eager=False)
def restored_while_moving(d: Driver) -> None:
    request, again = Request(1, [2], [1]), Request(1, [2], [0])
    d.step(request, range(2), accepted=2)
    d.start(request.move(1, 0))
    d.start(again.restore(2, 0))
    d.idle_until(1, 2)


@scenario("M06", "a host block changes hands while a row of it is hot")
def hot_row_of_a_recycled_block(d: Driver) -> None:
    first, second = Request(1, [2, 0], [1, 3]), Request(2, [2, 0], [1, 3])
    d.mirror.set_request(0, first.host)
    d.import_rows(first, range(2))
    d.start()
    d.read(first, [1])
    d.import_rows(second, range(2))
    d.start(source_block_ids=[2])
    d.read(second, [1])


@scenario("M07", "shut down with a page on its way", eager=False)
def shutdown_while_moving(d: Driver) -> None:
    request = Request(1, [2], [1])
    d.step(request, range(2), accepted=2)
    d.start(request.move(1, 0))


@scenario("M07", "shut down in the middle of a step")
def shutdown_in_a_step(d: Driver) -> None:
    request = Request(1, [2], [1])
    d.start(row_mirrors={})
    d.mirror.begin_forward(d.batch(request, range(2), deferred=False))
    d.write(0, request, range(2))


@scenario("M08", "two ranks share a pool: one has written it, both meet, one page comes back on both", ranks=2)
def two_ranks(d: Driver) -> None:
    request, again = Request(1, [2], [1]), Request(1, [2], [0])
    with d.script.setup():
        d.step(request, range(2), accepted=2)
    d.start(again.restore(1, 0))


@scenario(
    "M09", "two ranks: a page that is on its way is copied to another block, by one of them", ranks=2, eager=False
)
def two_ranks_and_a_copy(d: Driver) -> None:
    request = Request(1, [2], [1])
    with d.script.setup():
        d.step(request, range(2), accepted=2)
        d.start(request.move(1, 0))
    d.start(host_block_copies=[KVCacheBlockCopy(2, 3)])
