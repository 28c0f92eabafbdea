"""Whether a cache is quiet, told by its events alone: a few counts of what was begun and has not ended."""

from __future__ import annotations

from typing import Any

Holder = tuple[str, int]


class Watch:
    """Counts along with the events of one cache, which come one at a time."""

    def __init__(self) -> None:
        #: tasks registered and not drained, tasks whose waiters are not woken, reads that are pending
        self._registered = self._unwoken = self._reads = 0
        #: page -> who holds it; page -> step and keys of the copy there; pages whose copy is on its way
        self._holders: dict[int, list[Holder]] = {}
        self._frozen: dict[int, tuple[int, list[str]]] = {}
        self._landing: set[int] = set()
        #: unconsumed steps and their pages, in the order of their publishing
        self._steps: dict[int, int] = {}
        self._forwards = False
        #: tids in the queues, after the last event that says so
        self._queued = 0

    def take(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """Count one event."""
        if "dropped" in post:
            self._reads -= len(post["dropped"])
        if "reads" in post:
            self._reads += len(post["reads"])
        if "pending" in post:
            self._reads = post["pending"]
        if "holders" in post:
            self._hold(args["page"], post["holders"])
        if "steps" in post:
            self._steps = {step: self._steps[step] for step in post["steps"] if step in self._steps}
        if "hi" in post:
            self._queued = len(post["hi"]) + len(post["lo"])
        count = _COUNTS.get(action)
        if count is not None:
            count(self, args, post)

    def _hold(self, page: int, holders: list[Holder]) -> None:
        self._holders[page] = list(holders)
        if not holders:
            self._frozen.pop(page, None)
            self._landing.discard(page)

    def _publish(self, args: dict[str, Any], post: dict[str, Any]) -> None:
        opened = len(post["tids"]) + len(post["opened"])
        self._registered += opened
        self._unwoken += opened
        self._steps[args["step"]] = args["page"]

    def _drain(self, _: dict[str, Any], post: dict[str, Any]) -> None:
        self._registered -= len(post["written"]) + len(post["failed"])

    def _wake(self, args: dict[str, Any], _: dict[str, Any]) -> None:
        self._unwoken -= len(args["tids"])

    def _freeze(self, args: dict[str, Any], _: dict[str, Any]) -> None:
        self._frozen[args["page"]] = (args["step"], list(args["keys"]))
        self._landing.add(args["page"])

    def _lands(self, args: dict[str, Any], _: dict[str, Any]) -> None:
        self._landing.discard(args["page"])

    def _forward(self, _args: dict[str, Any], _post: dict[str, Any]) -> None:
        self._forwards = True

    def quiet(self, args: dict[str, Any], post: dict[str, Any]) -> bool:
        """Whether, after this `begin_step`, nothing is going on but builders that copy their steps out."""
        idle = not (self._registered or self._unwoken or self._reads or self._queued or self._landing)
        return idle and not args["hits"] and not post["sealed"]

    def state(self) -> dict[str, Any]:
        """The specification's variables that the events tell."""
        return {
            "holders": [[page, list(map(list, holders))] for page, holders in self._holders.items() if holders],
            "frozen": [[page, step, keys] for page, (step, keys) in self._frozen.items()],
            "steps": [[step, page] for step, page in self._steps.items()],
            "forwards": self._forwards,
        }


_COUNTS = {
    "publish": Watch._publish,
    "drain": Watch._drain,
    "wake": Watch._wake,
    "freeze": Watch._freeze,
    "copy_lands": Watch._lands,
    "overwrite_live": Watch._forward,
}
