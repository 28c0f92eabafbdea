"""A difference as tables for a terminal, and as Markdown for a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .changes import Change, Difference, How, Standings, Turned

_SIGNS = {How.ADDED: "+", How.REMOVED: "-", How.CHANGED: "~"}
_COLORS = {How.ADDED: "green", How.REMOVED: "red", How.CHANGED: "yellow"}
_LONGEST, _MOST_LINES = 160, 12
_NOTE = (
    "Nothing was run here. A run that changed no record (a number of states in the manifest, a kept verdict on a "
    "mutant) is not seen: CI's report says what ran on this commit."
)
#: of a model that is new or gone, what it is for is enough
_MODEL_LINES = 4


def summary(difference: Difference) -> str:
    """What changed, in a line."""
    counts = Counter((change.kind, change.how) for change in difference.changes)
    words = [f"{count} {kind}{'s' if count > 1 else ''} {how}" for (kind, how), count in counts.items()]
    return _plural(", ".join(words)) or "the protocol does not change"


def _plural(text: str) -> str:
    for wrong, right in (("propertys", "properties"), ("action of the codes", "actions of the code")):
        text = text.replace(wrong, right)
    return text


def print_difference(difference: Difference, console: Console) -> None:
    """The tables: what changed, the evidence, and the mutants whose verdict did."""
    console.print(f"{difference.base[:12]}..{difference.head[:12]}: {summary(difference)}", highlight=False)
    if difference.changes:
        console.print(_change_table(difference.changes))
    table = Table(title="evidence, by what the commits record", caption=_NOTE, caption_justify="left")
    for name in ("evidence", "stands", "what must run again"):
        table.add_column(name, overflow="fold")
    for each in difference.evidence:
        table.add_row(each.evidence, _stands(each), escape(_due(each)))
    console.print(table)
    if difference.mutants:
        console.print(_mutant_table(difference.mutants))


def _change_table(changes: Iterable[Change]) -> Table:
    table = Table(title="the protocol", show_lines=True)
    for name in ("", "what", "name", "how it differs"):
        table.add_column(name, overflow="fold")
    for change in changes:
        lines = "\n".join(_lines(change))
        table.add_row(_SIGNS[change.how], change.kind, escape(change.name), escape(lines), style=_COLORS[change.how])
    return table


def _lines(change: Change) -> list[str]:
    lines = [*(f"- {_short(line)}" for line in change.gone), *(f"+ {_short(line)}" for line in change.new)]
    most = _MODEL_LINES if change.kind == "model" and change.how is not How.CHANGED else _MOST_LINES
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"and {more} lines more"]


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _stands(each: Standings) -> str:
    return ", ".join(
        f"{count:,} {how}" if count > 1 or len(each.counts) > 1 else how for how, count in each.counts.items()
    )


def _due(each: Standings) -> str:
    named = ", ".join(each.due[:8]) + (f" and {len(each.due) - 8} more" if len(each.due) > 8 else "")
    return "; ".join(filter(None, (named, each.says)))


def _mutant_table(mutants: Iterable[Turned]) -> Table:
    table = Table(title="mutants whose verdict changed")
    for name in ("mutant", "was", "is"):
        table.add_column(name, overflow="fold")
    for each in mutants:
        table.add_row(escape(each.mutant), each.before or "(none)", each.after or "(gone)")
    return table


def markdown(difference: Difference) -> str:
    """The same for a pull request's comment."""
    return "\n".join(_markdown(difference)) + "\n"


def _markdown(difference: Difference) -> Iterator[str]:
    yield f"### Protocol: {summary(difference)}"
    yield ""
    yield f"`{difference.base[:12]}..{difference.head[:12]}`"
    for change in difference.changes:
        yield ""
        yield f"<details><summary>{_SIGNS[change.how]} {change.kind} <code>{change.name}</code> {change.how}</summary>"
        yield from ("", "```diff", *_lines(change), "```", "</details>")
    yield from ("", "| evidence | stands | what must run again |", "| --- | --- | --- |")
    for each in difference.evidence:
        yield f"| {each.evidence} | {_stands(each)} | {_due(each)} |"
    yield from ("", _NOTE)
    if difference.mutants:
        yield from ("", "| mutant | was | is |", "| --- | --- | --- |")
        for turned in difference.mutants:
            yield f"| `{turned.mutant}` | {turned.before or '(none)'} | {turned.after or '(gone)'} |"
