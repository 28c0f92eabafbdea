"""Workloads of the reference runner: Mooncake traces and their errors, samples, departures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.runners.reference import mooncake, workload

GOOD: dict[str, Any] = {"timestamp": 900, "input_length": 1030, "output_length": 33, "hash_ids": [0, 7, 8]}


def lines(*records: Any) -> list[str]:
    return [record if isinstance(record, str) else json.dumps(record) for record in records]


def test_lengths_are_scaled() -> None:
    (request,) = mooncake.read_trace(lines(GOOD), "t")
    assert len(request.prompt) == 33  # 1030 / 32, rounded up: two blocks of 16 and one token
    assert request.max_tokens == 2
    assert request.arrival == 1 + 900 // mooncake.STEP_MS


def test_prompts_share_what_their_hash_ids_share() -> None:
    other = {**GOOD, "hash_ids": [0, 7, 9]}
    one, two = mooncake.read_trace(lines(GOOD, other), "t")
    assert one.prompt[:32] == two.prompt[:32]
    assert one.prompt[32:] != two.prompt[32:]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: "),
        ("[1]", "line 3: a JSON object is needed, and this is list"),
        ({**GOOD, "input_length": 0}, "line 3: input_length must be an integer of at least 1, and is 0"),
        (
            {**GOOD, "output_length": "5"},
            "line 3: output_length must be an integer of at least 1, and is '5'",
        ),
        ({**GOOD, "timestamp": True}, "line 3: timestamp must be an integer of at least 0, and is True"),
        ({**GOOD, "hash_ids": None}, "line 3: hash_ids must be a list of integers, and is None"),
        ({**GOOD, "hash_ids": [1, 2.5, 3]}, "line 3: hash_ids must be a list of integers"),
        ({**GOOD, "hash_ids": [1, 2]}, "line 3: input_length 1030 takes 3 hash_ids, and there are 2"),
        ({"timestamp": 0}, "line 3: hash_ids|line 3: input_length"),
    ],
)
def test_a_malformed_line_is_an_error_with_its_number(line: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines(GOOD, "", line)), encoding="utf-8")
    with pytest.raises(mooncake.TraceError, match=message):
        mooncake.load_trace(path)


def test_only_the_lines_that_are_served_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines(GOOD, GOOD, "{")), encoding="utf-8")
    assert [request.req_id for request in mooncake.load_trace(path, 2)] == ["r1", "r2"]


def test_the_builtin_workload_is_the_same_for_the_same_seed() -> None:
    assert workload.builtin_workload(30, 5) == workload.builtin_workload(30, 5)
    assert workload.builtin_workload(30, 5) != workload.builtin_workload(30, 6)


def test_parallel_samples_and_departures() -> None:
    requests = workload.builtin_workload(4, 0)
    sampled = workload.with_parallel_samples(requests, 2)
    assert [request.req_id for request in sampled] == ["r0", "r1", "r1.2", "r2", "r3", "r3.2"]
    assert sampled[1].prompt == sampled[2].prompt
    assert [bool(request.leaves_after) for request in workload.with_departures(requests, 3)] == [
        False,
        False,
        True,
        False,
    ]
    assert workload.with_departures(workload.with_parallel_samples(requests, 0), 0) == requests
