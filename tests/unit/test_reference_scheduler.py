"""The scheduler of the reference runner: chunks, hits, early frees, preemption, aborts."""

from __future__ import annotations

import pytest

from palimpsest.runners.reference.blocks import BlockManager
from palimpsest.runners.reference.plan import StepPlan
from palimpsest.runners.reference.requests import Request
from palimpsest.runners.reference.scheduler import Scheduler

SIZE = 4


def make(*requests: Request, blocks: int = 16, max_tokens: int = 64) -> Scheduler:
    return Scheduler(requests, BlockManager(blocks, SIZE), max_sequences=8, max_tokens=max_tokens)


def request(name: str, length: int, max_tokens: int = 2, *, content: int = 1, **options: int) -> Request:
    return Request(name, (content,) * length, max_tokens, **options)


def step(scheduler: Scheduler) -> StepPlan:
    """One step whose next tokens are all 99."""
    plan = scheduler.schedule()
    scheduler.update(plan, dict.fromkeys(plan.num_scheduled_tokens, 99))
    return plan


def spans(plan: StepPlan) -> dict[str, tuple[int, int]]:
    return {share.req_id: (share.start, share.stop) for share in plan.shares}


def test_a_prompt_is_computed_in_chunks() -> None:
    scheduler = make(request("a", 10), max_tokens=4)
    assert [spans(step(scheduler)) for _ in range(4)] == [{"a": span} for span in ((0, 4), (4, 8), (8, 10), (10, 11))]


def test_a_hit_is_of_whole_blocks_and_leaves_a_token() -> None:
    scheduler = make(request("a", 8), request("b", 8, arrival=2))
    step(scheduler)
    plan = step(scheduler)
    assert spans(plan)["b"] == (4, 8)
    (share,) = (share for share in plan.shares if share.req_id == "b")
    assert share.hit == 4
    assert share.hit_writers.tolist() == [1] * 4  # the generation that computed them
    assert share.generation == 2
    assert [(new.req_id, new.num_computed_tokens) for new in plan.scheduled_new_reqs] == [("b", 4)]
    assert scheduler.counts.same_step_hits == 0


def test_a_request_of_the_same_step_hits_blocks_that_are_being_computed() -> None:
    scheduler = make(request("a", 12), request("b", 12))
    plan = step(scheduler)
    assert spans(plan) == {"a": (0, 12), "b": (8, 12)}
    assert plan.shares[1].slots[:8].tolist() == plan.shares[0].slots[:8].tolist()
    assert scheduler.counts.same_step_hits == scheduler.counts.multi_block_hits == 1


def test_blocks_are_reused_one_step_before_the_end_is_reported() -> None:
    scheduler = make(request("a", 8, 1), request("b", 8, 3, content=2, arrival=2), blocks=3)
    first = step(scheduler)
    assert scheduler.blocks.free_count == 3
    second = step(scheduler)
    assert not second.finished_req_ids
    assert set(second.shares[0].slots.tolist()) & set(first.shares[0].slots.tolist())
    third = step(scheduler)
    assert third.finished_req_ids == {"a"}


def test_the_latest_request_is_preempted_and_comes_back_as_a_new_generation() -> None:
    scheduler = make(request("a", 8, 8), request("b", 8, 8, content=2), blocks=5)
    step(scheduler)  # both prompts take two blocks each
    second = step(scheduler)  # a takes the fifth block, b needs a sixth
    assert second.preempted_req_ids == {"b"}
    assert list(spans(second)) == ["a"]
    plans = [step(scheduler) for _ in range(9)]
    back = next(plan for plan in plans if plan.scheduled_new_reqs)
    (new,) = back.scheduled_new_reqs
    (share,) = (share for share in back.shares if share.req_id == "b")
    assert new.num_computed_tokens == share.start == share.hit
    assert share.generation == 3
    assert share.stop == 9  # the prompt and the token it had
    assert scheduler.counts.preemptions == 1


def test_a_client_leaves_and_comes_back_with_the_same_id_when_the_cache_has_heard() -> None:
    leaving = Request("a", (1,) * 8, 4, leaves_after=(1,))
    scheduler = make(leaving)
    step(scheduler)
    second = step(scheduler)
    assert not second.shares
    assert not second.finished_req_ids
    assert scheduler.blocks.free_count == 16
    third = step(scheduler)
    assert third.finished_req_ids == {"a"}
    assert spans(third) == {"a": (4, 8)}
    assert scheduler.counts.aborted == 1


def test_every_request_ends_and_every_block_is_free_again() -> None:
    requests = [request(f"r{n}", 5 + 7 * n % 30, 1 + n % 6, content=n % 3, arrival=n // 2) for n in range(20)]
    scheduler = make(*requests, blocks=12, max_tokens=16)
    while not scheduler.done:
        step(scheduler)
        scheduler.blocks.check()
    assert scheduler.counts.finished == 20
    assert scheduler.counts.preemptions > 0
    assert scheduler.blocks.free_count == 12
    assert len(scheduler.take_ended()) == 20


def test_requests_that_cannot_be_served_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' takes 70 tokens, and the KV blocks hold 64"):
        make(request("a", 68))
    with pytest.raises(ValueError, match="no prompt"):
        make(request("a", 0))
