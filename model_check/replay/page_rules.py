"""The rules of staging pages, of the memory around them, and of the byte budget."""

from __future__ import annotations

import numpy as np

from .rules import Args, Rules
from .tables import Frozen, IntArray, Task


class PageRules(Rules):
    """Actions under the page lock, the budget's, and the environment's."""

    # ---------------------------------------------------------------- budget

    def reserve(self, args: Args, post: Args, thread: str) -> None:
        s, nbytes = self.s, args["nbytes"]
        self.handed_over()
        if s.reserved is not None or s.over_budget:
            self.reject("one step is charged at a time", "BudgetExact", f"{s.reserved} bytes are reserved")
        if s.reports_forwards and s.begun is not None and not s.begun.forward:
            self.reject("its forward has run", "SourceFrozen")
        if nbytes < 0:
            self.reject("a charge is a number of bytes", "BudgetExact", f"{nbytes}")
        fits = s.staged_bytes + nbytes <= s.budget
        self.same("fits", fits, args["fits"])
        if fits:
            s.staged_bytes += nbytes
            s.reserved = nbytes
        s.over_budget = not fits
        self.same("staged_bytes", s.staged_bytes, post["staged_bytes"])

    def unreserve(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        if s.reserved != args["nbytes"]:
            self.reject("what no ticket holds is given back", "BudgetExact", f"{s.reserved} bytes are reserved")
        s.staged_bytes -= args["nbytes"]
        s.reserved = None
        self.same("staged_bytes", s.staged_bytes, post["staged_bytes"])

    def release_tickets(self, tasks: list[Task]) -> None:
        """Tasks leave their tickets; the last one out gives the bytes back."""
        for task in tasks:
            for ticket in task.tickets:
                ticket.holders.remove(task.tid)
                if not ticket.holders:
                    self.s.staged_bytes -= ticket.nbytes
            task.tickets = []

    # ---------------------------------------------------------------- pages

    def same_holders(self, page: int, logged: list[tuple[str, int]]) -> None:
        """Compare who holds a page."""
        self.same("holders", sorted(self.s.holders[page]), logged)

    def claim_page_begin(self, args: Args, post: Args, thread: str) -> None:
        s, holder = self.s, args["holder"]
        self.handed_over()
        if holder[0] != "step" or holder[1] <= s.last_claim:
            self.reject("a step claims a page once", "PageExclusive", f"{holder} after step {s.last_claim}")
        if s.begun is None and not s.ended:  # the end of a shutdown takes it from under a save
            self.reject("a step was begun", "ConsumeOnce")
        if s.begun is not None and s.reports_forwards and not s.begun.forward:
            self.reject("its forward has run", "SourceFrozen")
        s.last_claim, s.claimed_bytes = holder[1], s.reserved
        s.waiting.add(holder)

    def claim_page_end(self, args: Args, post: Args, thread: str) -> None:
        s, page, holder = self.s, args["page"], args["holder"]
        if holder not in s.waiting:
            self.reject("the wait was begun", "NoWaitUnderLock", f"{holder}")
        if not 0 <= page < len(s.holders) or s.holders[page]:
            self.reject("the page is free", "PageExclusive", f"page {page}")
        s.waiting.discard(holder)
        s.holders[page].add(holder)
        self.same_holders(page, post["holders"])

    def release_page(self, args: Args, post: Args, thread: str) -> None:
        page, left = args["page"], args["left"]
        if not 0 <= page < len(self.s.holders) or not left:
            self.reject("somebody leaves a page", "ReleasedOnce", f"page {page}: {left}")
        holders, tasks = self.s.holders[page], self.s.tasks
        if not holders.issuperset(left) or len(set(left)) < len(left):
            self.reject("it holds the page", "ReleasedOnce", f"{left} on page {page}")
        for kind, number in left:
            if kind == "step":
                self._step_leaves(page, number, thread)
            elif (task := tasks[number]).state != "FAILED" and (task.state != "HOST_READY" or task.landing is None):
                self.reject("its rows are in the pool", "PageExclusive", f"task {number} is {task.state}")
        holders.difference_update(left)
        if not holders:
            self.s.frozen.pop(page, None)
        self.same_holders(page, post["holders"])

    def _step_leaves(self, page: int, number: int, thread: str) -> None:
        s = self.s
        if number in s.steps:
            self.reject("its step is consumed", "PageExclusive", f"step {number}")
        copy = s.frozen.get(page)
        if copy is not None and not copy.landed:
            if not copy.published:
                self.reject("the copy of a step that is given up has landed", "PageExclusive", f"page {page}")
            if number in s.taken:  # its wait for the copy ran out
                s.raising.add(thread)
        s.taken.discard(number)

    # ---------------------------------------------------------------- memory

    def overwrite_live(self, args: Args, post: Args, thread: str) -> None:
        s = self.s
        if s.ended:
            return  # the end took the step from under it
        if s.begun is None or s.begun.forward:
            self.reject("a begun step's forward runs once", "SourceFrozen")
        s.reports_forwards = s.begun.forward = True

    def freeze(self, args: Args, post: Args, thread: str) -> None:
        s, page, step = self.s, args["page"], args["step"]
        if not 0 <= page < len(s.holders) or s.holders[page] != {("step", step)}:
            self.reject("the step alone holds the page", "PageExclusive", f"page {page}")
        if page in s.frozen:
            self.reject("a page is frozen once", "SourceFrozen", f"page {page}")
        if len(set(args["keys"])) < len(args["keys"]):
            self.reject("a key is frozen once", "SourceFrozen", f"{args['keys']}")
        self._one_identity(post["tags"])
        s.frozen[page] = Frozen(step, args["keys"], post["tags"])

    def _one_identity(self, tags: dict[str, IntArray]) -> None:
        """The rows of a token have the same identity in each key, but for the key's own number."""
        numbers, spec = self.s.key_numbers, None
        for key, lines in tags.items():
            if not lines[0, -1] and not np.count_nonzero(lines):
                continue  # rows that carry no identity
            number = numbers.setdefault(key, int(lines[0, -1]))
            spec = lines.copy() if spec is None else spec
            spec[:, -1] = number
            if spec.shape != lines.shape or spec.tobytes() != lines.tobytes():
                self.differ("tags", f"those of {next(iter(tags))!r}, with {number} for {key!r}", lines[:8].tolist())

    def copy_lands(self, args: Args, post: Args, thread: str) -> None:
        s, page, tags = self.s, args["page"], post["tags"]
        frozen = s.frozen.get(page)
        if frozen is None or frozen.landed or frozen.step != args["step"]:
            self.reject("a copy of the step is under way", "SourceFrozen", f"page {page}")
        frozen.landed = True
        self.same("tags", frozen.keys, args["keys"])
        self.same("tags", [key for key in frozen.keys if key in frozen.tags], list(tags))
        for key, lines in tags.items():
            spec = frozen.tags[key]
            if spec is not lines and (spec.shape != lines.shape or spec.tobytes() != lines.tobytes()):
                self.differ("tags", spec[:8].tolist(), lines[:8].tolist())
