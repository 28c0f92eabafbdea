"""A runner that calls the real cache as a behavior of the specification says: its plans are the scheduler's, its calls
come when the behavior's next step needs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from palimpsest.errors import PrefixCacheError
from palimpsest.prefix_cache.manager import PrefixCacheManager

from ..explore.memory import InjectedError
from ..explore.model import View as Batch
from ..explore.primitives import CooperativeSync
from ..explore.scheduler import STATE_LOCK
from .device import Device
from .follow import Follower
from .points import DataRows
from .sink import DrivenSink
from .sizes import Sizes
from .spec_state import Cell, Identity

Plan = Mapping[str, Any]


class Runner:
    """The threads that call one cache, each parked until the behavior's next step is its own."""

    def __init__(self, follower: Follower, sizes: Sizes) -> None:
        self.sizes, self._follower = sizes, follower
        self.scheduler = scheduler = follower.scheduler
        self.sync = CooperativeSync(scheduler)
        self._batch = Batch(sizes.block_size)
        self.sink = DrivenSink(scheduler, sizes.tag, follower)
        self.cache = PrefixCacheManager(sizes.config, self._batch, eager=False, sync=self.sync, trace=self.sink)
        self.cache.register_policy(sizes.policy)
        self._name_primitives()
        self.device = Device(self.cache)
        DataRows(follower, self.cache, sizes)
        self._live: dict[str, torch.Tensor] = {}
        self._saves: dict[int, tuple[int, Plan]] = {}
        self._plan: Plan = {}
        for name, calls in (("engine", self._engine), ("builder", self._builder), ("closer", self._closer)):
            scheduler.spawn(name, partial(self._serve, name, calls))
        scheduler.spawn("device", self._land_all)

    def _name_primitives(self) -> None:
        cache, controller = self.cache, self.cache._controller
        names: dict[str, Any] = {
            STATE_LOCK: cache._state_lock, "the task lock": controller._lock,
            "the page lock": controller.staging._lock, "work": controller._work, "a page": controller.staging._freed,
        }  # fmt: skip
        for name, primitive in names.items():
            primitive.name = name

    # ---------------------------------------------------------------- threads

    def _serve(self, name: str, calls: Callable[[], None]) -> None:
        """Make the call that the behavior's next step of this thread needs; errors are the behavior's business."""
        while True:
            self.scheduler.point("call", f"of the {name}", lambda: self._follower.wants(name))
            asked, raised = self._follower.expected, None
            try:
                calls()
            except (PrefixCacheError, InjectedError) as error:
                raised = error
            self._follower.ended(name, asked, raised)

    def _engine(self) -> None:
        match self._follower.call_of("engine"):
            case "overwrite_live":
                self._forward()
            case "begin_step":
                self._begin(self._follower.state["agenda"][0])
            case "reset":
                self.cache.reset()
            case "save":
                self._save()

    def _builder(self) -> None:
        match self._follower.call_of("builder"):
            case ("take_step", step):
                self._materialize(self._code_step(step))
            case ("discard_step", step):
                self.cache.discard_step(self._code_step(step))

    def _closer(self) -> None:
        if self._follower.call_of("closer") == "shutdown_begin":
            self.cache.shutdown()

    def _land_all(self) -> None:
        while True:
            self.scheduler.point("land", "rows", lambda: self._follower.wants("device"))
            page = self._follower.landing_page()
            self.device.land(page)
            self._follower.happened("copy_lands")

    def _code_step(self, step: int) -> int:
        return next(code for code, named in self._follower.code.steps.items() if named == step)

    # ---------------------------------------------------------------- the engine's calls

    def _begin(self, plan: Plan) -> None:
        self._plan = plan
        rows = {request: sorted(plan["rows"][request]) for request in plan["order"]}
        self._batch.order = list(plan["order"])
        slots = [slot for request in plan["order"] for _, slot in rows[request]]
        self._batch.slots = torch.tensor(slots, dtype=torch.int64)
        new = [self._new(request, plan, rows[request]) for request in plan["order"] if _is_new(plan, rows[request])]
        self.cache.new_step_starts(
            SimpleNamespace(
                scheduled_new_reqs=new,
                finished_req_ids=sorted(plan["ended"]),
                num_scheduled_tokens={request: len(rows[request]) for request in plan["order"]},
            )
        )

    def _new(self, request: str, plan: Plan, rows: list[tuple[int, int]]) -> SimpleNamespace:
        size, hit = self.sizes.block_size, plan["hits"][request]
        blocks = list(dict.fromkeys([slot // size for slot in (*hit, *(slot for _, slot in rows))]))
        return SimpleNamespace(req_id=request, num_computed_tokens=len(hit), block_ids=[blocks])

    def _forward(self) -> None:
        """Put the rows of the step into the live buffers, which are others': the last ones are overwritten."""
        written: Mapping[Cell, Identity] = self._follower.ahead()["buffers"]
        for rows in self._live.values():
            rows.fill_(-1)
        slots = self._batch.slots.tolist()
        self._live = {
            key: torch.tensor([self.sizes.row(written[slot, key]) for slot in slots], dtype=self.sizes.dtype)
            for key in self.sizes.keys
            if key in self._plan["keys"]
        }
        self._follower.happened("overwrite_live")

    def _save(self) -> None:
        sizes, count = self.sizes, int(self._batch.slots.numel())
        self.device.slots = self._batch.slots.tolist()
        rows = {sizes.code_key(key): value for key, value in self._live.items()}
        hidden = next((rows.pop(sizes.code_key(key)) for key in sizes.hidden if sizes.code_key(key) in rows), None)
        self.cache.save_outputs(hidden, rows, num_tokens_unpadded=count, num_tokens_padded=count)

    def published(self, step: int, begin: int) -> None:
        """From now on the builder may consume a step."""
        self._saves[step] = begin, self._plan

    # ---------------------------------------------------------------- the builder's calls

    def _materialize(self, step: int) -> None:
        """Consume a step; what is delivered of its hits is what the specification's reads got."""
        begin, plan = self._saves[step]
        outputs = self.cache.materialize(step, list(plan["order"]))
        of_keys = {**outputs.mm_outputs}
        if outputs.hidden_states is not None:
            of_keys[self.sizes.code_key(next(iter(self.sizes.hidden)))] = outputs.hidden_states
        for key, of_requests in of_keys.items():
            for request in plan["order"]:
                hit = len(plan["hits"][request])
                delivered = self.sizes.identities(of_requests[request][:hit])
                self._follower.delivered((begin, request, self.sizes.spec_key(key)), delivered)


def _is_new(plan: Plan, rows: list[tuple[int, int]]) -> bool:
    """Whether a request starts a life with its rows in this step: then its slots were given to it."""
    return bool(rows) and {slot for _, slot in rows} <= set(plan["given"])
