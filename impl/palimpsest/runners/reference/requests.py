"""Requests of the reference runner: what a client asks for, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from palimpsest.runners.reference.blocks import extend_hashes


@dataclass(frozen=True)
class Request:
    """What a client asks for. `arrival` is the step from which it can be admitted.

    `leaves_after` tells a client that goes away: at its first visit after so many steps, at the next after so
    many. It comes back with the same id as soon as the cache has heard that it left.
    """

    req_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int = 0
    leaves_after: tuple[int, ...] = ()

    @property
    def total_tokens(self) -> int:
        """The most tokens that it can have."""
        return len(self.prompt) + self.max_tokens


class Sequence:
    """One request being served: its tokens so far, its blocks, and its generation while it is admitted."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []
        self.computed = 0
        #: number of its present life: a new one each time it is admitted
        self.generation = -1
        self.steps = 0
        self.aborted = False

    @property
    def req_id(self) -> str:
        """The request's id."""
        return self.request.req_id

    @property
    def finished(self) -> bool:
        """Whether all its tokens are there."""
        return len(self.tokens) >= self.request.total_tokens

    def block_hashes(self, block_size: int) -> list[bytes]:
        """Hashes of the full blocks of its tokens so far."""
        extend_hashes(self.hashes, self.tokens, block_size)
        return self.hashes
