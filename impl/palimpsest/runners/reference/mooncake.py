"""Loads a request trace in Mooncake's format: arrival, lengths, and ids of 512-token prefix blocks.

Lengths are scaled by `SCALE`: a hash block of 512 tokens becomes `BLOCK_TOKENS` = 16 tokens (two KV blocks of
8), and every length is divided by 32 and rounded up. The tokens of a hash block are a function of its id, so
that requests share exactly the prefixes that they share in the trace. `STEP_MS` of the trace are one step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from palimpsest.runners.reference.requests import Request
from palimpsest.runners.reference.workload import VOCABULARY

TRACE_BLOCK_TOKENS = 512
SCALE = 32
BLOCK_TOKENS = TRACE_BLOCK_TOKENS // SCALE
STEP_MS = 400


class TraceError(ValueError):
    """A line of a request trace is not what the format says; the message has its number."""


def load_trace(path: Path, limit: int | None = None) -> list[Request]:
    """The first `limit` requests of a trace file (None: all). Raises `TraceError` for a malformed line."""
    with path.open(encoding="utf-8") as lines:
        return list(islice(read_trace(lines, str(path)), limit))


def read_trace(lines: Iterable[str], name: str) -> Iterator[Request]:
    """The requests of a trace's lines, one by one; blank lines are passed over."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _request(f"r{number}", json.loads(line))
            except (ValueError, TypeError) as error:
                raise TraceError(f"{name}, line {number}: {error}") from error


def _request(req_id: str, record: Any) -> Request:
    if not isinstance(record, dict):
        raise TypeError(f"a JSON object is needed, and this is {type(record).__name__}")
    input_length = _number(record, "input_length", at_least=1)
    output_length = _number(record, "output_length", at_least=1)
    timestamp = _number(record, "timestamp", at_least=0)
    hash_ids = _hash_ids(record, input_length)
    prompt = tuple(token for hash_id in hash_ids for token in block_tokens(hash_id))[: _scaled(input_length)]
    return Request(req_id, prompt, _scaled(output_length), arrival=1 + timestamp // STEP_MS)


def _scaled(length: int) -> int:
    return -(-length // SCALE)


def _number(record: dict[str, Any], field: str, *, at_least: int) -> int:
    value = record.get(field)
    if type(value) is not int or value < at_least:
        raise ValueError(f"{field} must be an integer of at least {at_least}, and is {value!r}")
    return value


def _hash_ids(record: dict[str, Any], input_length: int) -> list[int]:
    ids = record.get("hash_ids")
    if not isinstance(ids, list) or not all(type(value) is int for value in ids):
        raise ValueError(f"hash_ids must be a list of integers, and is {ids!r:.60}")
    blocks = -(-input_length // TRACE_BLOCK_TOKENS)
    if len(ids) != blocks:
        raise ValueError(f"input_length {input_length} takes {blocks} hash_ids, and there are {len(ids)}")
    return ids


def block_tokens(hash_id: int) -> tuple[int, ...]:
    """The tokens that stand for one hash block."""
    rng = random.Random(hash_id)
    return tuple(rng.randrange(VOCABULARY) for _ in range(BLOCK_TOKENS))
