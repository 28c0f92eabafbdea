"""A model whose states say which step led to them: TLC writes the states of a simulated behavior, and not its steps.

The generated module has one more variable, and each line of `Next` once more with what it does to that. The other
variables take the same steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..errors import CheckError
from ..manifest import Manifest, Model
from ..workspace import prepare

#: the variable: the action, the thread that it is quantified over, the start's number, steps since, and `LATER`
DID = "did"
MODULE = "PrefixCache"
#: What may come at any time would mostly come at once, and be the end of a random behavior: it comes after a number of
#: steps that is drawn first. Any behavior is still one that may be drawn.
LATER = ("ShutdownBegin", "Reset", "Fail")
_FIRST_AFTER = "{0, 10, 20, 30, 40, 60, 80}"
#: schedules that no engine has: a step without hidden states where they are cached, slots for a new request that is
#: there already. The cache refuses the first (`BadStepError`), and takes the second for one that goes on.
_SCHEDULES = r"""
ToldNew(plan, r) == plan.rows[r] # {} /\ {x[2] : x \in plan.rows[r]} \subseteq plan.given
ToldLive(s, i, r) == \E j \in 1..(i - 1) : r \in Range(s[j].order) /\ \A k \in (j + 1)..i : r \notin s[k].ended
ToldFit(s) == \A i \in DOMAIN s :
    /\ s[i].order # <<>> => Hidden \subseteq s[i].keys
    /\ \A r \in Range(s[i].order) : ToldNew(s[i], r) => ~ToldLive(s, i, r)
ToldUnfit == PrintT("PALIMPSEST " \o ToString(Cardinality({s \in Schedules : ~ToldFit(s)})))"""
_NEXT = re.compile(r"^Next ==\n(.*?)^\S", re.MULTILINE | re.DOTALL)
_ACTION = re.compile(r"(?P<over>\\E (?P<variable>\w+) \\in .+ : )?(?P<name>\w+)(?:\((?P=variable)\))?")
#: what a thread is called in the specification's quantifiers
_THREAD = "t"


class Start(NamedTuple):
    """A state in which behaviors begin: a number of its own, and the state as TLC writes it."""

    number: int
    text: str


def prepare_told(
    model: Model, manifest: Manifest, folder: Path, starts: Sequence[Start] = (), only: str = ""
) -> tuple[Path, Path]:
    """As `prepare`, for the told steps of `model`: from its initial states, or from `starts`. Properties are not
    checked. `only` is TLA+ that each step must fulfill; without it, `LATER` is drawn."""
    constraints = (*model.action_constraints, *(["ToldOnly"] if only else []))
    bare = replace(
        model, specification=None, init="ToldInit", next="ToldNext", action_constraints=constraints,
        invariants=("ToldWhole",), properties=(), symmetry=None, view=None,
    )  # fmt: skip
    module, config = prepare(bare, manifest, folder)
    lines = told_lines((folder / f"{MODULE}.tla").read_text(encoding="utf-8"))
    module.write_text(_with(module.read_text(encoding="utf-8"), lines, starts, only), encoding="utf-8")
    return module, config


def told_lines(text: str) -> list[str]:
    """The lines of `Next` in a module's text, each with what it says of itself. Raises `CheckError` where there is one
    that is no action, perhaps over a set."""
    found = _NEXT.search(text)
    lines = [line.strip() for line in found[1].splitlines()] if found else []
    actions = [line.removeprefix("\\/").strip() for line in lines if line and not line.startswith("\\*")]
    if not actions:
        raise CheckError(f"{MODULE}.tla has no Next that is a list of actions")
    return [_told(action) for action in actions]


def _told(action: str) -> str:
    if (match := _ACTION.fullmatch(action)) is None:
        raise CheckError(f"a line of Next in {MODULE}.tla is not an action by itself: {action}")
    by = _THREAD if match["variable"] == _THREAD else '""'
    late = f"{DID}.step >= {DID}.later /\\ " if match["name"] in LATER else ""
    over, name = match["over"] or "", match["name"]
    did = f'[{DID} EXCEPT !.action = "{name}", !.by = {by}, !.step = @ + 1]'
    return f"{over}{late}{action.removeprefix(over)} /\\ {DID}' = {did}"


def _with(module: str, lines: Sequence[str], starts: Sequence[Start], only: str) -> str:
    later = "{0}" if only else _FIRST_AFTER
    first = [_start(each, later) for each in starts] or [
        f"    \\/ ToldUnfit /\\ Init /\\ ToldFit(agenda) /\\ {_begun(0, later)}"
    ]
    steps = [f"    \\/ {line}" for line in lines]
    # a function that nobody has looked at yet is written as its definition: to compare is to look
    added = [f"VARIABLE {DID}", _SCHEDULES, "ToldWhole == vars = vars", "ToldInit ==", *first, "ToldNext ==", *steps]
    added += [f"ToldOnly == {only}"] if only else []
    return module.removesuffix("====\n") + "\n".join([*added, "====\n"])


def _start(start: Start, later: str) -> str:
    state = "\n".join(f"          {line}" for line in start.text.strip().splitlines())
    return f"    \\/ /\\ {_begun(start.number, later)}\n       /\\\n{state}"


def _begun(number: int, later: str) -> str:
    return f'{DID} \\in [action : {{"Init"}}, by : {{""}}, of : {{{number}}}, step : {{0}}, later : {later}]'


def spec_name(action: str) -> str:
    """The specification's name of an action."""
    return "".join(part.capitalize() for part in action.split("_"))
