"""The pictures of the docs: a step, the places of a row, and each life cycle as it is declared."""

from __future__ import annotations

from collections.abc import Iterator

from diagrams import Arrow, flow, sequence, states

from palimpsest.lifecycle import LIFECYCLES, Lifecycle, triples

_STEP = [
    Arrow("engine", "engine", "new_step_starts: end requests, plan the hits' reads"),
    Arrow("engine", "prefetch", "reads"),
    Arrow("prefetch", "prefetch", "fetch what can be fetched"),
    Arrow("", "", "the forward"),
    Arrow("engine", "engine", "save_outputs: wait for the last step's writes"),
    Arrow("engine", "engine", "claim a staging page, copy the live buffers to it"),
    Arrow("engine", "engine", "publish: preserve, claim slots, plan again, store the step"),
    Arrow("engine", "committer", "dispatch"),
    Arrow("", "", "the next step"),
    Arrow("committer", "committer", "rows into the pool, leave the page, record, wake"),
    Arrow("builder", "builder", "materialize: copy the step's rows off the page"),
    Arrow("prefetch", "builder", "prefix rows"),
    Arrow("builder", "builder", "check versions, put [prefix | new] together"),
]
_PLACES = {
    "live buffers": (0.0, 1.0), "staging page": (1.0, 0.0), "deferred clone": (1.0, 2.0), "pool": (2.0, 1.0),
    "preserved copy": (2.0, 2.9), "caller's rows": (3.0, 1.0),
}  # fmt: skip
_ROWS = [
    Arrow("live buffers", "staging page", "freeze"),
    Arrow("live buffers", "deferred clone", "freeze"),
    Arrow("staging page", "pool", "pool write"),
    Arrow("deferred clone", "pool", "pool write"),
    Arrow("staging page", "caller's rows", "deliver"),
    Arrow("pool", "caller's rows", "fetch"),
    Arrow("deferred clone", "caller's rows", "fetch"),
    Arrow("pool", "preserved copy", "preserve"),
    Arrow("preserved copy", "caller's rows", "fetch"),
]
_WHAT = {
    "WriteTask": "The write of one request's rows into the pool. Any state that is not final leads to `FAILED`.",
    "StagingPage": "The host landing buffer of one whole step. Steps and tasks hold it; the last one out frees it.",
    "Step": "One scheduler output. A step that is begun and never published is dropped by the next one.",
    "SlotRow": "What can be read of one key on one slot. A new tenant loses the rows of every key, written or not.",
}


def pictures() -> dict[str, str]:
    """Each picture's text by the name of its file."""
    drawn = {f"{each.name}.svg": states(each.states, each.initial, _arrows(each)) for each in LIFECYCLES}
    return {
        "step.svg": sequence(["engine", "prefetch", "committer", "builder"], _STEP),
        "rows.svg": flow(_PLACES, _ROWS),
        **drawn,
    }


def lifecycles() -> str:
    """A section for each life cycle: its picture, and which actions pull which trigger."""
    return "\n".join(line for each in LIFECYCLES for line in _section(each))


def _arrows(lifecycle: Lifecycle) -> list[Arrow]:
    """The transitions; triggers between the same two states share an arrow."""
    found: dict[tuple[str, str], list[str]] = {}
    for trigger, source, dest in triples(lifecycle.machine()):
        found.setdefault((source, dest), []).append(trigger)
    return [Arrow(source, dest, " / ".join(triggers)) for (source, dest), triggers in found.items()]


def _section(lifecycle: Lifecycle) -> Iterator[str]:
    name = lifecycle.name
    yield from (f"## {name}", "", _WHAT[name], "", f"![the states of a {name}](pictures/{name}.svg)", "")
    yield "| trigger | from | to | pulled by the actions |"
    yield "| --- | --- | --- | --- |"
    for trigger, sources, dest in lifecycle.transitions:
        actions = ", ".join(f"`{action}`" for action in lifecycle.actions.get(trigger, ()))
        yield f"| `{trigger}` | {', '.join(sources)} | {dest} | {actions} |"
    yield ""
