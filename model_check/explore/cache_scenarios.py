"""The scenarios: interleavings of engine, builder, prefetch thread and committer that caches over reused memory have
failed in. Numbers are those of the catalogue of scenarios (tests/scenario/README.md)."""

from __future__ import annotations

from palimpsest.errors import StaleReadError, StepConsumedError, WaitTimeoutError

from .model import hit, more, prefill
from .scenario import Registry
from .script import Script

CACHE_SCENARIOS = Registry()
scenario = CACHE_SCENARIOS.add

#: bytes of one deferred row
ROW = 16

# ------------------------------------------------------------------ what a hit may see


@scenario("S01", "a hit on rows of its own step delivers those, not the earlier tenant's")
def same_step_hit(s: Script) -> None:
    with s.setup():
        s.run({"z": prefill([0], 2)})
    s.build(s.step({"a": prefill([0], 2), "b": hit([0, 1], 2, 1)}, finished=["z"]))


@scenario("S01", "a hit on rows of its own step delivers keys that the step shows first")
def same_step_hit_on_a_cold_cache(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2), "b": hit([0, 1], 2, 1)}, "d"))


@scenario("S02", "a read delayed past the reuse of its block delivers the rows it was planned on")
def delayed_read(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.build(s.step({"c": hit([0, 1], 2, 1)}, finished=["a"]))
    s.build(s.step({"b": prefill([0], 2)}))


@scenario("S03", "a hit on a block that was given away and never written raises")
def never_written(s: Script) -> None:
    with s.setup():
        s.run({"z": prefill([0], 2)})
    s.begin({"a": prefill([0], 2)}, finished=["z"])
    s.build(s.step({"b": hit([0, 1], 2, 1)}, finished=["a"]))


@scenario("S04", "deferred rows of an aborted request are served to a hit that comes with the notice")
def aborted_while_deferred(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}, "d"))
    s.build(s.step({"b": hit([0, 1], 2, 1)}, "d", finished=["a"]))


@scenario("S06", "a hit on rows that are still being written waits for them")
def hit_before_the_commit(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}))
    s.build(s.step({"b": hit([0, 1], 2, 1)}))


# ------------------------------------------------------------------ copies and pages


@scenario("S15", "what is saved is what lands, although the live buffers are overwritten before", slow_device=True)
def copy_lands_late(s: Script) -> None:
    s.run({"a": prefill([0], 2), "b": hit([0, 1], 2, 1)})


@scenario("S17", "nobody reads a page before its copy has landed", slow_device=True, options={"staging_depth": 1})
def one_page_and_a_slow_device(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}))
    s.build(s.step({"a": more([0, 1], 2)}))


@scenario("S19", "a gather of two blocks, one of which is being rewritten, delivers planned rows only")
def half_of_a_read_is_reused(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0, 1], 4)})
    s.build(s.step({"c": hit([0, 1, 2], 4, 1)}, finished=["a"]))
    s.build(s.step({"b": prefill([1], 1)}))


@scenario("S20", "rows of a preempted request that wait for their write do not land on the block's next tenant")
def preempted_before_its_write(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
    s.build(s.step({"b": prefill([0], 2)}, "d", finished=["a"]))
    s.build(s.step({"c": hit([0, 1], 2, 1)}, "d"))


@scenario("S23", "a staging page is not reused before its rows are in the pool", options={"staging_depth": 1})
def one_page(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}))
    s.build(s.step({"b": prefill([1], 2)}))


@scenario("S24", "a hit over rows of two tasks of one request has both", options={"gpu_staging_bytes": 2 * ROW})
def read_over_two_tasks(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
    s.build(s.step({"a": more([0, 1], 2, 2)}, "d"))
    s.build(s.step({"b": hit([0, 1, 2], 4, 1)}, "d", finished=["a"]))


@scenario("S26", "two reads of one block, one fetched early and one late, both deliver planned rows")
def two_readers(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.build(s.step({"b": hit([0, 1], 2, 1), "c": hit([0, 2], 2, 1)}, finished=["a"]))
    s.build(s.step({"e": prefill([0], 2)}))


@scenario("S28", "who waits for a write finds its record when it is woken")
def save_waits_for_the_last_write(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}))
    s.build(s.step({"a": more([0, 1], 2)}))


@scenario(
    "S29", "a task that is claimed while its request ends is written once", options={"gpu_staging_bytes": 2 * ROW}
)
def ended_while_claimed(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
    s.idle(finished=["a"])
    s.forward()
    s.build(s.step({"b": prefill([1], 2)}, "d"))


# ------------------------------------------------------------------ ownership


@scenario("S39", "idle steps take in what was written")
def idle_steps_drain(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}, "d"))
    s.idle(finished=["a"])
    s.idle()


@scenario("S42", "a save that waits for a page gets it when the builder has consumed", options={"staging_depth": 1})
def save_waits_for_a_page(s: Script) -> None:
    first = s.step({"a": prefill([0], 2)})
    s.beside("consumer", lambda: s.consume(first))
    s.discard(s.step({"a": more([0, 1], 2)}))


@scenario(
    "S42", "a save that has warned that it waits for a page has the one that came free meanwhile",
    options={"staging_depth": 1, "slow_wait_s": 1.0}, timeouts=1,
)  # fmt: skip
def save_warns_that_it_waits(s: Script) -> None:
    save_waits_for_a_page(s)


@scenario(
    "S06", "a read that has warned that it waits for its rows has those that were fetched meanwhile",
    options={"slow_wait_s": 1.0}, timeouts=1,
)  # fmt: skip
def read_warns_that_it_waits(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.build(s.step({"b": hit([0, 1], 2, 1)}, finished=["a"]))


@scenario(
    "S42", "a save for which no page can come free says so within its bound, and can be tried again",
    options={"staging_depth": 1}, timeouts=1,
)  # fmt: skip
def no_page_comes_free(s: Script) -> None:
    first = s.step({"a": prefill([0], 2)}, "d")
    s.begin({"a": more([0, 1], 2)})
    try:
        s.save("d")
    except WaitTimeoutError:
        s.discard(first)
        s.discard(s.save("d"))


@scenario("S43", "of two who consume a step at once, one has it", allows=(StepConsumedError,))
def consumed_twice(s: Script) -> None:
    step = s.step({"a": prefill([0], 2)})
    s.build(step)
    s.beside("discarder", lambda: s.discard(step))


@scenario("S44", "a step discarded while its reads are fetched leaves nothing behind")
def discarded_while_fetching(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.discard(s.step({"b": hit([0, 1], 2, 1)}))
    s.build(s.step({"c": prefill([0], 2)}, finished=["a"]))


@scenario("S44", "a begun step that is never saved leaves its reads, fetched or not")
def begun_and_dropped(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.begin({"b": hit([0, 1], 2, 1)})
    s.idle()
    s.build(s.step({"c": prefill([0], 2)}, finished=["a"]))


@scenario("S47", "a request id that is used again while its old rows are written is a new request")
def request_id_used_again(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
    s.build(s.step({"a": prefill([1], 2)}, "d", finished=["a"]))
    s.build(s.step({"b": hit([0, 2], 2, 1)}, "d"))


@scenario("S48", "a request preempted and resumed on its own block, while that is written, has its own rows")
def resumed_on_its_own_block(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}, "d"))
    s.build(s.step({"a": hit([0, 1], 2, 1)}, "d", finished=["a"]))


@scenario("S54", "a builder that lags two steps behind gives each step its own rows")
def builder_lags(s: Script) -> None:
    steps = [s.step({"a": prefill([0], 2)}), s.step({"a": more([0, 1], 2)}), s.step({"b": hit([0, 2], 2, 1)})]
    for step in steps:
        s.build(step)


@scenario("S64", "a slot that is lost and taken back has the rows of its last tenant")
def slot_taken_back(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
        s.run({"b": prefill([0], 2)}, "d")
    s.build(s.step({"a": prefill([0], 2)}, "d", finished=["a", "b"]))
    s.build(s.step({"c": hit([0, 1], 2, 1)}, "d"))


@scenario("S65", "an older tenant's write that comes late does not overwrite the newer one's")
def older_tenant_writes_late(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
        s.run({"b": prefill([0], 2)}, "d")
    s.idle(finished=["b"])
    s.idle(finished=["a"])
    s.build(s.step({"c": hit([0, 1], 2, 1)}, "d"))


@scenario("S64", "a slot that a live request loses and takes back has the rows that it wrote last")
def slot_taken_back_by_a_live_request(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
        s.run({"b": prefill([0], 2)}, "d")
    s.build(s.step({"a": more([0], 0, 2)}, "d", finished=["b"]))
    s.build(s.step({"c": hit([0, 1], 2, 1)}, "d", finished=["a"]))


@scenario("S65", "a write that is under way when its block is given away does not make the next tenant's rows readable")
def block_reused_during_its_write(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
    s.idle(finished=["a"])
    s.forward()
    s.build(s.step({"b": prefill([0], 2)}, "d"))
    s.idle()


@scenario("S09", "a key that a block's next tenant does not write is absent there, although its last one did")
def key_that_the_next_tenant_does_not_write(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)}, "d")
    s.build(s.step({"b": more([0], 0, 2)}, finished=["a"]))
    s.build(s.step({"c": hit([0, 1], 2, 1)}, "d"))


# ------------------------------------------------------------------ the byte budget


@scenario("S57", "a save that flushes the oldest rows while they are read", options={"gpu_staging_bytes": 2 * ROW})
def flush_during_a_save(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}, "d"))
    s.build(s.step({"b": prefill([1], 2)}, "d"))


@scenario("S58", "a clone that two requests share is paid once", options={"gpu_staging_bytes": 2 * ROW})
def shared_clone(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 1), "b": prefill([1], 1)}, "d"))
    s.idle(finished=["a"])
    s.build(s.step({"c": prefill([2], 2)}, "d", finished=["b"]))


# ------------------------------------------------------------------ epochs


@scenario("S75", "nothing saved before a reset is read after it", allows=(StaleReadError,))
def reset_during_a_write(s: Script) -> None:
    s.build(s.step({"a": prefill([0], 2)}, "d"))
    s.reset()
    s.build(s.step({"b": hit([0, 1], 2, 1)}, "d"))


@scenario("S75", "a read planned before a reset delivers what was planned, or raises", allows=(StaleReadError,))
def reset_during_a_read(s: Script) -> None:
    with s.setup():
        s.run({"a": prefill([0], 2)})
    s.build(s.step({"b": hit([0, 1], 2, 1)}))
    s.reset()
