"""How a comparison of the two checkers is shown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..errors import CheckError
from ..jvm import Toolchain
from ..manifest import Manifest, Model
from .compare import Comparison, compare
from .dump import dump

#: models of at most so many states are compared where none is named
SMALL_STATES = 2000
_SINGLE = "<- Single"


def comparable(models: Sequence[Model]) -> list[Model]:
    """Those of `models` that are small and have an in-process checker: the prefix cache, with blocks of one slot."""
    return [each for each in models if _fits(each) and (each.states or SMALL_STATES + 1) <= SMALL_STATES]


def _fits(model: Model) -> bool:
    return model.kind == "model" and model.constants.get("Blocks") == _SINGLE and model.specification == "RestSpec"


def compare_all(models: Sequence[Model], manifest: Manifest, tools: Toolchain, console: Console) -> bool:
    """Compare each of `models` and show what came out; whether the two agree on all."""
    if unfit := [model.name for model in models if not _fits(model)]:
        raise CheckError(f"the in-process checker has no state graph for {', '.join(unfit)}: blocks of one slot only")
    done = []
    for model in models:
        done.append(compare(model, dump(model, manifest, tools)))
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
