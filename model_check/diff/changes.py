"""Two protocols compared: what was added, removed and changed, and what that means for the evidence."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..mutants.verdicts import Record
from .protocol import Part, Protocol


class How(enum.StrEnum):
    """What became of a thing."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """One thing of the protocol; `gone` and `new` are the lines that differ."""

    kind: str
    name: str
    how: How
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()


class Standing(enum.StrEnum):
    """Where a kind of evidence stands after the change, by what the commits themselves record of it."""

    KEPT = "kept"
    RECORDED = "recorded anew"
    DUE = "must run again"


@dataclass(frozen=True)
class Standings:
    """One kind of evidence: how much of it stands how, and the names of what must run again."""

    evidence: str
    counts: Mapping[str, int]
    due: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True)
class Turned:
    """A mutant of which another property, or none, is the verdict now; None where it was not there."""

    mutant: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Difference:
    """What a change does to the protocol."""

    base: str
    head: str
    changes: tuple[Change, ...]
    evidence: tuple[Standings, ...]
    mutants: tuple[Turned, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything, for `json.dump`."""
        return {"diff": 1, **asdict(self)}


def compare(base: str, head: str, before: Protocol, after: Protocol, touched: Sequence[str]) -> Difference:
    """The difference between two commits, whose paths in `touched` differ."""
    changes = [change for kind in after.kinds for change in _changes(kind, before.kinds[kind], after.kinds[kind])]
    evidence = (_models(before, after), _mutants(before, after), *_of_the_code(touched))
    turned = tuple(_turned(before.mutants, after.mutants))
    return Difference(base, head, tuple(changes), evidence, turned)


def _changes(kind: str, before: Mapping[str, Part], after: Mapping[str, Part]) -> Iterator[Change]:
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if now is None and was is not None:
            yield Change(kind, name, How.REMOVED, was.lines)
        elif was is None and now is not None:
            yield Change(kind, name, How.ADDED, (), now.lines)
        elif was is not None and now is not None and was.content != now.content:
            yield Change(kind, name, How.CHANGED, _without(was.lines, now.lines), _without(now.lines, was.lines))


def _without(lines: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    left = Counter(others)
    found = []
    for line in lines:
        left[line] -= 1
        if left[line] < 0:
            found.append(line)
    return tuple(found)


def _models(before: Protocol, after: Protocol) -> Standings:
    """A model whose content changed must run again, unless the number of its states was recorded anew with it."""
    standing = {name: _model(name, before, after) for name in after.keys}
    due = tuple(name for name, how in standing.items() if how is Standing.DUE)
    says = (
        "recorded anew: the manifest expects another number of states" if Standing.RECORDED in standing.values() else ""
    )
    return Standings("model checking", _counted(standing.values()), due, says)


def _model(name: str, before: Protocol, after: Protocol) -> Standing:
    if before.keys.get(name) == after.keys[name]:
        return Standing.KEPT
    was, now = before.models.get(name), after.models[name]
    recorded = now.states is not None and (was is None or was.states != now.states)
    return Standing.RECORDED if recorded else Standing.DUE


def _mutants(before: Protocol, after: Protocol) -> Standings:
    """A kept verdict is about the contents that its keys name: it moves with them, or must run again."""
    standing = {}
    for name, record in after.mutants.items():
        was = before.mutants.get(name)
        moved = any(before.keys.get(model) != after.keys.get(model) for model in record.keys)
        if was is None or was.keys != record.keys:
            standing[name] = Standing.RECORDED
        else:
            standing[name] = Standing.DUE if moved else Standing.KEPT
    says = "recorded anew: the kept verdict is of another content" if Standing.RECORDED in standing.values() else ""
    due = tuple(name for name, how in standing.items() if how is Standing.DUE)
    return Standings("mutants of the specification", _counted(standing.values()), due, says)


#: evidence about the code, and the folders that it rests on
_CACHE, _MIRROR = ("impl/palimpsest/prefix_cache/", "impl/palimpsest/sync.py"), ("impl/palimpsest/host_mirror/",)
_RESTS_ON = {
    "schedules (explore)": (*_CACHE, *_MIRROR, "model_check/explore/"),
    "mutants of the code": (*_CACHE, *_MIRROR, "model_check/explore/", "model_check/mutants/code"),
    "steps of the specification (drive)": (*_CACHE, "spec/", "model_check/drive/"),
    "replay of traces": ("impl/palimpsest/", "model_check/replay/"),
    "replay of traces in TLC": ("impl/palimpsest/", "spec/", "model_check/tlc_replay/"),
    "the host mirror": (*_MIRROR, "impl/palimpsest/kv_cache/", "model_check/mirror_replay/"),
    "random programs, soak": (*_CACHE, "model_check/programs/"),
    "tests": ("impl/", "tests/", "model_check/", "spec/"),
}


def _of_the_code(touched: Sequence[str]) -> Iterator[Standings]:
    """Nothing of these is kept between runs: what a commit touches must run."""
    for evidence, roots in _RESTS_ON.items():
        files = tuple(path for path in touched if path.startswith(roots))
        standing = Standing.DUE if files else Standing.KEPT
        says = f"{len(files)} file{'s' if len(files) != 1 else ''} changed" if files else ""
        yield Standings(evidence, {standing.value: 1}, (), says)


def _counted(standings: Any) -> dict[str, int]:
    found = Counter(standings)
    return {each.value: found[each] for each in Standing if found[each]}


def _turned(before: Mapping[str, Record], after: Mapping[str, Record]) -> Iterator[Turned]:
    for name in sorted(before.keys() | after.keys()):
        was, now = (_verdict(records.get(name)) for records in (before, after))
        if was != now:
            yield Turned(name, was, now)


def _verdict(record: Record | None) -> str | None:
    return None if record is None else record.killed_by or "survives"
