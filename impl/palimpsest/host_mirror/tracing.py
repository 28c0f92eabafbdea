"""What a traced mirror says: the header, rows by layer and slot read back from copy descriptors, hot rows, identities.

Slots are numbers of rows (`block * rows of a page + offset`), on the host or in the page table of a layer's source. All
ranks of a process may share one sink: each event has its `rank`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from palimpsest.host_mirror.batch import HostMirrorConfig
from palimpsest.host_mirror.rows import IntArray
from palimpsest.trace import Sink

SYSTEM = "host_mirror"


def header(config: HostMirrorConfig, ranks: int) -> dict[str, Any]:
    """What stands before the events. `observed`: each copy and each wait of the forward stream is reported."""
    return {
        "system": SYSTEM,
        "ranks": ranks,
        "observed": config.torch_device.type == "cpu",
        "eager": config.eager,
        "refines": config.refines,
        "block_rows": config.block_rows,
        "num_host_blocks": config.num_host_blocks,
        "num_resident_blocks": config.num_resident_blocks,
        "max_requests": config.max_requests,
        "hot_rows": config.hot_rows,
        "layers": [
            {"name": spec.name, "leader": spec.leader, "source": spec.source, "draft": spec.draft}
            for spec in config.layers
        ],
    }


class RankTrace:
    """One rank's way to a sink. `section`: held by actions that queue, and by the copy stream when it reports."""

    def __init__(self, sink: Sink, rank: int, section: AbstractContextManager[Any]) -> None:
        self._sink, self.rank, self.section = sink, rank, section

    def emit(self, action: str, args: dict[str, Any], post: dict[str, Any]) -> None:
        """One event."""
        self._sink.emit(action, {"rank": self.rank, **args}, post)

    def tags(self, layer: str, rows: torch.Tensor) -> Any:
        """The identities in rows [rows, width] on the host; None where they carry none."""
        tag = self._sink.tag
        return None if tag is None or not rows.shape[0] else tag(layer, rows)


def handed_rows(worker: Any, src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor) -> list[dict[str, Any]]:
    """The rows that copy descriptors move, by layer: host slots, and the device slots that they come from."""
    addresses = [array.numpy().copy() for array in (src, dst, sizes)]
    found = []
    for layer, (resident, host) in enumerate(zip(worker.resident_caches, worker.host_caches, strict=True)):
        source, target, nbytes = addresses
        start, width = host.data_ptr(), host.stride(0) * host.element_size()
        mine = (target >= start) & (target < start + host.shape[0] * width)
        if not mine.any():
            continue
        stride, page_rows = resident.stride(0) * resident.element_size(), int(resident.shape[1])
        offset, counts = source[mine] - resident.data_ptr(), nbytes[mine] // width
        device = offset // stride * page_rows + offset % stride // width
        found.append(
            {
                "layer": layer,
                "host": _runs((target[mine] - start) // width, counts),
                "device": _runs(device, counts),
            }
        )
    return found


def _runs(starts: IntArray, counts: IntArray) -> IntArray:
    """The numbers of runs that begin at `starts`, one after the other."""
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts, counts) + np.arange(int(counts.sum())) - before


def hot_slots(worker: Any) -> list[list[list[int]]]:
    """The host slots that are hot: by index group and request state."""
    tables = [runtime.index_group.table.slots for runtime in worker.leader_runtimes]
    return [[np.sort(line[line >= 0]).tolist() for line in table] for table in tables]


def selected_slots(runtime: Any) -> tuple[IntArray, list[list[int]]]:
    """Of a group's selection, what is not on the device: places in the hot buffer, and (state, host slot) of each."""
    table = runtime.index_group.table
    hot = runtime.index_group.topk.selection.hot
    places = np.unique(hot[hot >= 0])
    slots = table.slots.reshape(-1)[places]
    return places, [
        [place // table.capacity, slot] for place, slot in zip(places.tolist(), slots.tolist(), strict=True)
    ]


def selected(runtime: Any, layer: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and post-state of a selection: what is read off the device, what of it is fetched, what is hot now."""
    table, selection = runtime.index_group.table, runtime.index_group.topk.selection
    states = (selection.missing_hot // table.capacity).tolist()
    missing = [[state, slot] for state, slot in zip(states, selection.missing_slots.tolist(), strict=True)]
    hot = [np.sort(line[line >= 0]).tolist() for line in table.slots]
    return {"layer": layer, "slots": selected_slots(runtime)[1]}, {"missing": missing, "hot": hot}


# ------------------------------------------------------------------ a worker's state


def transfer_state(worker: Any) -> dict[str, Any]:
    """What was handed on, transfers that wait for the forward or for their end, blocks whose hot rows are stale."""
    return {
        "handed": worker._take_handed(),
        "waiting": [each.transfer_id for each in worker._post_forward_transfers],
        "enqueued": list(worker._enqueued_transfer_ids),
        "stale": list(worker._pending_invalid_block_ids),
    }


def restored_rows(worker: Any, transfers: Any) -> list[dict[str, Any]]:
    """Layer, block on the device and identities of each page that was restored."""
    rows = []
    for layer, (handle, resident) in enumerate(zip(worker.cache_handles, worker.resident_caches, strict=True)):
        for transfer in (each for each in transfers if each.restore):
            block = transfer.resident_block_ids[handle.runtime.resident_source_index]
            tags = worker._trace.tags(worker.cache_layer_names[layer], resident[block])
            rows.append({"layer": layer, "block": block, "tags": tags})
    return rows


def host_tags(worker: Any, blocks: list[int]) -> list[Any]:
    """By layer, the identities in the rows of host blocks."""
    rows = worker.kernel_block_size
    slots = (np.array(blocks)[:, None] * rows + np.arange(rows)).reshape(-1)
    names = worker.cache_layer_names
    return [worker._trace.tags(name, host[slots]) for name, host in zip(names, worker.host_caches, strict=True)]


def batch_of_phase(worker: Any) -> dict[str, Any]:
    """Host slots and states of the rows that a phase wrote, and whether they were deferred."""
    handle = next((each for n, each in enumerate(worker.cache_handles) if worker._is_of_phase(n)), None)
    if handle is None or handle.num_actual_tokens <= 0:
        return {"slots": [], "states": [], "deferred": False}
    count = handle.num_actual_tokens
    return {
        "slots": handle.mirror_slot_mapping[:count].tolist(),
        "states": handle.req_id_per_token[:count].tolist(),
        "deferred": bool(handle.decode_batch),
    }


def staged_slots(worker: Any, count: int) -> list[int] | None:
    """The slots that a phase staged, -1 for rows that were rejected; None where it staged none."""
    staging = worker._slot_mapping_staging
    return None if staging is None or not count else list(staging.slots[:count].tolist())
