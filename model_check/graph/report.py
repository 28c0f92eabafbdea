"""How a comparison of the two checkers is shown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..jvm import Toolchain
from ..manifest import Manifest, Model
from .compare import Comparison, compare
from .dump import dump
from .systems import SYSTEMS, System, system_of


def comparable(models: Sequence[Model]) -> list[Model]:
    """Those of `models` that are small and have an in-process checker with a graph like theirs."""
    return [each for each in models if any(_small(each, system) for system in SYSTEMS)]


def _small(model: Model, system: System) -> bool:
    return system.fits(model) and model.states is not None and model.states <= system.small_states


def smallest(models: Sequence[Model]) -> list[Model]:
    """Of each system the smallest of `models`."""
    small = sorted(comparable(models), key=lambda model: model.states or 0)
    return [first for system in SYSTEMS for first in [each for each in small if system.fits(each)][:1]]


def compared(model: Model, manifest: Manifest, tools: Toolchain) -> Comparison:
    """What comes out for `model`. Raises `CheckError` for one whose graph is not compared."""
    system = system_of(model)
    return compare(model, dump(system.dumped(model), manifest, tools), system=system)


def compare_all(models: Sequence[Model], manifest: Manifest, tools: Toolchain, console: Console) -> bool:
    """Compare each of `models` and show what came out; whether the two agree on all."""
    for model in models:
        system_of(model)
    done = []
    for model in models:
        done.append(compared(model, manifest, tools))
        console.print(f"{model.name}: {'the same' if done[-1].same else 'DIFFERENT'}", markup=False, highlight=False)
    console.print(_table(done))
    for each in done:
        for says in each.differences:
            console.print(f"{each.model}: {says}", style="red", markup=False, highlight=False, soft_wrap=True)
        if taken := {action: f"{count} of {each.given[action]}" for action, count in each.taken.items() if count}:
            more = ", ".join(f"{action} {count}" for action, count in sorted(taken.items()))
            console.print(f"{each.model}: also taken where TLC has no edge: {more}", markup=False, highlight=False)
    return all(each.same for each in done)


def _table(done: Sequence[Comparison]) -> Table:
    table = Table(title="edges of TLC's graph, taken by the in-process checker")
    for name in ("model", "states", "edges", "without an event", "different", "foreign events", "of them taken"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for each in done:
        counts = (each.states, each.edges, each.silent, len(each.differences), each.given.total(), each.taken.total())
        table.add_row(each.model, *(f"{count:,}" for count in counts))
    return table
