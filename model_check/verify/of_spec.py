"""Evidence on the specification: its models, its mutants, and that the in-process checker says the same."""

from __future__ import annotations

import random
import shutil
import tempfile
from importlib import import_module
from pathlib import Path

from rich.console import Console

from ..check import Outcome, check
from ..counterexample import Counterexample
from ..jvm import find_toolchain
from ..manifest import Manifest, load_manifest
from ..mutants.verdicts import VERDICTS
from ..report import CheckProgress
from .evidence import Detail
from .kind import Found, MissingError, Setting, kind

#: the part of the mutants that a quick run tries
QUICK_PART = 0.1


@kind("models", "TLC's verdict on each model, reach model and mutant of the manifest is the expected one", alone=True)
def models(setting: Setting) -> Found:
    """The quick set, or all."""
    manifest = load_manifest()
    chosen = manifest.select(which="quick" if setting.quick else "full")
    with CheckProgress(setting.console, len(chosen)) as progress:
        outcomes = check(manifest, chosen, find_toolchain(), setting.jobs, progress)
    wrong = [f"{each.model.name}: {each.surprise}" for each in outcomes if each.surprise]
    if setting.findings is not None:
        _save(setting.findings, manifest, outcomes)
    states = sum(each.result.progress.distinct for each in outcomes if each.result)
    detail = Detail(("model", "kind", "verdict", "states", "seconds"), tuple(map(_line, outcomes)))
    return Found(len(outcomes), "models", wrong, f"{states:,} distinct states", detail)


def _save(folder: Path, manifest: Manifest, outcomes: list[Outcome]) -> None:
    """The counterexample of each surprise."""
    for each in outcomes:
        if each.surprise and each.result and each.result.steps:
            Counterexample.of(each.model.name, each.result, each.model.purpose, manifest.threads).save(folder)


def _line(outcome: Outcome) -> tuple[str, ...]:
    counted = (f"{outcome.result.progress.distinct:,}", f"{outcome.result.seconds:.1f}") if outcome.result else ("", "")
    return (outcome.model.name, outcome.model.kind, outcome.surprise or outcome.verdict, *counted)


@kind("mutants", "each mistake in the specification is caught by a property", alone=True)
def mutants(setting: Setting) -> Found:
    """Those that a property kills: a random tenth, or all. Survivors take all models (`palimpsest mutants --all`):
    their kept verdicts have to be about what they are now, and explained. The kept verdicts stay as they are."""
    try:
        from ..mutants.report import idle, stale, unexplained
        from ..mutants.session import Session, Which
    except ModuleNotFoundError as error:
        raise MissingError(f"{error}: pip install 'palimpsest-cache[mutants]'") from error
    with tempfile.TemporaryDirectory(prefix="palimpsest-mutants-") as name:
        folder = Path(name)
        for file in VERDICTS.parent.glob("*.*ml"):
            shutil.copy(file, folder)
        shutil.copy(VERDICTS, folder)
        session = Session(load_manifest(), folder)
        changed = [each.name for each in session.selected(Which())]
        kept = unexplained([*session.mutants.values()], session.verdicts, session.explained)
        kept += stale(session.mutants, session.verdicts, session.explained) + idle(session.idle)
        kills = sorted(
            name for name, known in session.verdicts.mutants.items() if known.killed_by and name in session.mutants
        )
        part = round(QUICK_PART * len(kills)) or len(kills)
        drawn = random.Random(setting.seed).sample(kills, part) if setting.quick else kills
        which = Which(tuple(drawn))
        chosen = session.selected(which)
        with (folder / "log.txt").open("w", encoding="utf-8") as log:
            right = session.run(which, setting.jobs, Console(file=log, width=160))
        said = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    killed = [each for each in chosen if (known := session.verdicts.mutants.get(each.name)) and known.killed_by]
    says = f"{len(killed)} of {len(kills)} that were killed are killed again"
    says += f"; {len(session.mutants) - len(changed)} of all {len(session.mutants)} have a verdict that is up to date"
    records = [(each, session.verdicts.mutants.get(each.name)) for each in chosen]
    rows = tuple((each.name, (known and known.killed_by) or "SURVIVES", each.says) for each, known in records)
    wrong = [] if right else [line for line in said[-12:] if line.strip()]
    wrong += kept + [f"{each} has no verdict on what it is now: palimpsest mutants {each}" for each in changed]
    return Found(len(chosen), "mutants", wrong, says, Detail(("mutant", "killed by", "says"), rows))


@kind("graph", "TLC's reachable graph and the in-process checkers agree on the small models, edge by edge")
def graph(setting: Setting) -> Found:
    """The smallest model of each system, or all that can be compared."""
    try:
        shown = import_module("..graph.report", __package__)
    except ModuleNotFoundError as error:
        raise MissingError("this installation has no comparison of the two graphs") from error
    manifest = load_manifest()
    models = (shown.smallest if setting.quick else shown.comparable)(manifest.select(which="full"))
    with setting.console.status("the graphs of the small models"):
        done = [shown.compared(model, manifest, find_toolchain()) for model in models]
    wrong = [f"{each.model}: {says}" for each in done for says in each.differences]
    rows = tuple((each.model, f"{each.states:,}", f"{each.edges:,}") for each in done)
    says = f"{sum(each.states for each in done):,} states of {len(done)} models"
    return Found(sum(each.edges for each in done), "edges", wrong, says, Detail(("model", "states", "edges"), rows))
