"""What the events of a host mirror are made of, action by action."""

from __future__ import annotations

from typing import Any

from palimpsest.host_mirror.tracing import SYSTEM

from ..replay.schema import Kind, MalformedError, maybe, number, numbers, record, several, table, truth, word

__all__ = ["MIRROR_FORMS", "SYSTEM", "check_header"]

_LAYER = record(name=word, leader=truth, source=number, draft=truth)
_HEADER = record(
    system=word, ranks=number, observed=truth, eager=truth, refines=truth, block_rows=number, num_host_blocks=number,
    num_resident_blocks=number, max_requests=number, hot_rows=number, layers=several(_LAYER),
)  # fmt: skip


def check_header(config: dict[str, Any]) -> None:
    """Raise `MalformedError` unless this is the header of a mirror's trace."""
    _HEADER(config)
    for name in ("ranks", "block_rows", "num_host_blocks", "num_resident_blocks", "max_requests", "hot_rows"):
        if config[name] < 1:
            raise MalformedError(f"{name} is {config[name]}")
    if not config["layers"]:
        raise MalformedError("a mirror has layers")


_ANY = record()
_PAIRS = several(numbers)
_HOT = several(several(numbers))
_TAGS = maybe(table)
_HANDED = several(record(layer=number, host=numbers, device=numbers))
_LANDED = several(record(layer=number, host=numbers, device=numbers, tags=_TAGS))
_RESTORED = several(record(layer=number, block=number, tags=_TAGS))
_TRANSFER = record(
    transfer_id=number, host_block_id=number, resident_block_ids=numbers, after_forward=truth, restore=truth
)
_MIRROR = record(source_starts=numbers, destination_start=number, num_rows=number)
_QUEUES = record(handed=_HANDED, waiting=numbers, enqueued=numbers, stale=numbers)
_PHASE: dict[str, Kind] = {"rank": number, "slots": numbers, "states": numbers, "deferred": truth}
_PHASE_ENDED = record(handed=_HANDED, hot=_HOT)


def _args(**kinds: Kind) -> Kind:
    return record(rank=number, **kinds)


#: action: what its `args` are, and its `post`
MIRROR_FORMS: dict[str, tuple[Kind, Kind]] = {
    "import_rows": (_args(layer=number, slots=numbers), record(tags=_TAGS)),
    "forget_state": (_args(state=number), record(hot=_HOT)),
    "await_writes": (_args(), record(waits=number, next=number)),
    "meet": (_args(), record(next=number)),
    "copy_host_blocks": (_args(copies=_PAIRS), record(wrote=truth, tags=several(_TAGS))),
    "start_transfers": (_args(given=numbers, transfers=several(_TRANSFER), mirrors=several(_MIRROR)), _QUEUES),
    "invalidate_blocks": (_args(blocks=numbers), record(hot=_HOT)),
    "write": (
        _args(layer=number, deferred=truth, host=numbers, states=numbers, device=numbers),
        record(tags=_TAGS, reported=numbers, handed=_HANDED),
    ),
    "select": (_args(layer=number, slots=_PAIRS), record(missing=_PAIRS, hot=several(numbers))),
    "gather": (_args(layer=number), record(slots=_PAIRS, tags=_TAGS)),
    "finish_target": (record(**_PHASE, staged=maybe(numbers)), _PHASE_ENDED),
    "finish_drafts": (record(**_PHASE), _PHASE_ENDED),
    "finish_step": (_args(), _QUEUES),
    "take_completed_transfers": (_args(), record(taken=numbers)),
    "shutdown": (_args(), _ANY),
    "compute_runs": (_args(), record(restored=_RESTORED)),
    "copy_runs": (_args(), record(rows=_LANDED)),
}
