"""What moves many things at once says what one at a time would: life cycles, holders, rows, output views."""

from __future__ import annotations

import pytest
import torch

from palimpsest.errors import IllegalTransitionError
from palimpsest.lifecycle import TASKS, TaskState
from palimpsest.prefix_cache.block_pool import PrefixBlockPool
from palimpsest.prefix_cache.interface import PrefixCacheConfig, WriteSchedule
from palimpsest.prefix_cache.merge import RowsByRequest
from palimpsest.prefix_cache.sets import fire, in_state
from palimpsest.prefix_cache.staging import Holders, StagingBufferHolder
from palimpsest.prefix_cache.steps import BatchShape
from palimpsest.prefix_cache.tasks import WriteChunk, WriteTask

STATES = list(TaskState)


@pytest.mark.parametrize("trigger", TASKS.next)
def test_a_transition_of_many_tasks_is_that_of_each(trigger):
    legal = [state for state in STATES if TASKS.next[trigger][state] != 255]
    assert list(TASKS.fire_all(trigger, bytearray(legal))) == [TASKS.fire(trigger, state) for state in legal]


@pytest.mark.parametrize("trigger", TASKS.next)
def test_one_task_in_an_illegal_state_stops_all(trigger):
    for state in STATES:
        before = bytearray([TaskState.PENDING, state])
        if any(TASKS.next[trigger][each] == 255 for each in before):
            with pytest.raises(IllegalTransitionError):
                TASKS.fire_all(trigger, before)
            assert before == bytearray([TaskState.PENDING, state])


def test_a_set_of_tasks_that_is_no_group_moves_task_by_task():
    chunk = WriteChunk(slots_cpu=torch.tensor([0]), tensors={"k": torch.ones(1, 2)})
    tasks = [WriteTask(tid, "a", 1, WriteSchedule.JOIN_NEXT_STEP, [chunk]) for tid in (4, 9)]
    fire(tasks, "queue")
    assert in_state(tasks, TaskState.QUEUED) == tasks
    tasks[0].state = TaskState.FAILED
    assert in_state(tasks, TaskState.QUEUED) == [tasks[1]]
    with pytest.raises(IllegalTransitionError):
        fire(tasks, "claim_copy")


def test_holders_are_the_set_of_their_kinds_and_numbers():
    held, step, task = Holders(), StagingBufferHolder.for_step(1), StagingBufferHolder.for_task(1)
    held.add(task)
    held.add(step)
    assert held == {step, task}
    assert list(held) == sorted({task, step})
    held.tasks.difference_update(range(3))
    assert task not in held
    assert held == {step}
    held.clear()
    assert not held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("row_shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("strided", [False, True])
def test_scattered_rows_of_any_shape_are_written_whole(dtype, row_shape, strided):
    pool = PrefixBlockPool(PrefixCacheConfig(4, 4))
    pool.ensure_key("k", dtype, row_shape)
    rows = (torch.randn((10, *row_shape)) * 9).to(dtype)
    rows = rows[::2] if strided else rows[:5]
    slots = torch.tensor([9, 3, 0, 15, 7])
    pool.write("k", slots, rows)
    assert torch.equal(pool.rows("k", slots), rows)
    others = torch.tensor([slot for slot in range(16) if slot not in slots.tolist()])
    assert not pool.rows("k", others).any()


def test_output_rows_are_made_when_they_are_asked_for_and_belong_to_the_caller():
    shape = BatchShape(["a", "b", "c"], {"a": 2, "b": 0, "c": 1})
    merged = torch.full((4, 2), 7.0)
    rows = RowsByRequest(torch.arange(6.0).view(3, 2), shape, ["a", "c"], {"c": merged})
    assert list(rows) == ["a", "c"]
    assert rows["c"] is merged
    assert rows["a"] is rows["a"]
    assert torch.equal(rows["a"], torch.arange(4.0).view(2, 2))
    assert "b" not in rows
    with pytest.raises(KeyError):
        rows["b"]
    rows["b"] = merged
    del rows["a"]
    assert set(rows) == {"b", "c"}
