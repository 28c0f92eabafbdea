"""docs/lifecycles.md, made from the declarations: `python -m palimpsest.lifecycle_docs docs/lifecycles.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from palimpsest.lifecycle import LIFECYCLES, Lifecycle, mermaid

_HEAD = """\
# Life cycles

Made from the declarations in `impl/palimpsest/lifecycle.py`: `python -m palimpsest.lifecycle_docs docs/lifecycles.md`;
a test compares the two. The hot path looks transitions up in tables compiled from the same declarations, the
specification's `TaskNext` and `RowNext` (`spec/Vocabulary.tla`) are the same sets, and the replay refuses a trace that
leaves them. An illegal trigger raises and changes nothing.
"""
_WHAT = {
    "WriteTask": "The write of one request's rows into the pool. Any state that is not final leads to `FAILED`.",
    "StagingPage": "The host landing buffer of one whole step. Steps and tasks hold it; the last one out frees it.",
    "Step": "One scheduler output. A step that is begun and never published is dropped by the next one.",
    "SlotRow": "What can be read of one key on one slot. A new tenant loses the rows of every key, written or not.",
}


def document() -> str:
    """The whole text."""
    return _HEAD + "".join(f"\n{section}" for section in map(_section, LIFECYCLES))


def _section(lifecycle: Lifecycle) -> str:
    return "\n".join(
        [f"## {lifecycle.name}", "", _WHAT[lifecycle.name], "", *_diagram(lifecycle), "", *_table(lifecycle), ""]
    )


def _diagram(lifecycle: Lifecycle) -> list[str]:
    return ["```mermaid", mermaid(lifecycle.machine()).rstrip("\n"), "```"]


def _table(lifecycle: Lifecycle) -> Iterator[str]:
    yield "| trigger | from | to | pulled by the actions |"
    yield "| --- | --- | --- | --- |"
    for trigger, sources, dest in lifecycle.transitions:
        actions = ", ".join(f"`{action}`" for action in lifecycle.actions.get(trigger, ()))
        yield f"| `{trigger}` | {', '.join(sources)} | {dest} | {actions} |"


def main(arguments: list[str]) -> int:
    """Write the document to the file named."""
    if len(arguments) != 1:
        print("usage: python -m palimpsest.lifecycle_docs FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
