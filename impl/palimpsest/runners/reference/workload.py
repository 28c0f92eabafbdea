"""The built-in workload: conversations on shared system prompts; parallel samples; clients that leave."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator

from palimpsest.runners.reference.requests import Request

VOCABULARY = 512


def builtin_workload(count: int, seed: int) -> list[Request]:
    """`count` requests: new conversations on shared system prompts, and further turns of earlier ones."""
    rng = random.Random(seed)
    systems = [_tokens(rng, rng.randrange(16, 97)) for _ in range(6)]
    conversations: list[tuple[int, ...]] = []
    requests = []
    for number in range(count):
        prompt = _prompt(rng, systems, conversations)
        conversations.append(prompt)
        requests.append(Request(f"r{number}", prompt, rng.choice((1, 1, 4, 12, 24)), arrival=1 + number // 2))
    return requests


def _prompt(
    rng: random.Random, systems: list[tuple[int, ...]], conversations: list[tuple[int, ...]]
) -> tuple[int, ...]:
    recent = [prompt for prompt in conversations[-12:] if len(prompt) < 300]
    start = rng.choice(recent) if recent and rng.random() < 0.5 else rng.choice(systems)
    return start + _tokens(rng, rng.randrange(4, 60))


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(count))


def with_parallel_samples(requests: Iterable[Request], every: int) -> list[Request]:
    """The requests, of which each `every`-th asks for two samples: the same prompt twice at the same time,
    so that the second hits blocks that the first computes in the same step. 0 changes nothing."""

    def samples() -> Iterator[Request]:
        for number, request in enumerate(requests, 1):
            yield request
            if every and number % every == 0:
                yield dataclasses.replace(request, req_id=f"{request.req_id}.2")

    return list(samples())


def with_departures(requests: Iterable[Request], every: int) -> list[Request]:
    """The requests, of which each `every`-th has a client that leaves after two steps, comes back with the
    same id, leaves again right after the step of its hit, and comes back to stay. 0 changes nothing."""
    return [
        dataclasses.replace(request, leaves_after=(2, 1)) if every and number % every == 0 else request
        for number, request in enumerate(requests, 1)
    ]
