"""Evidence that specification and code go together."""

from __future__ import annotations

from ..check import Simulation
from ..drive.drive import Driven, drive
from ..drive.graph import dump
from ..drive.models import QUICK, SIMULATED_QUICK, drivable, simulable
from ..drive.report import COLUMNS, among_graphs, cells, never
from ..drive.simulated import Simulated, drive_simulated
from ..jvm import find_toolchain
from ..manifest import load_manifest
from .evidence import Detail
from .kind import Found, Setting, kind

#: runs of a model in a quick run
QUICK_RUNS = 200
#: simulated behaviors of a model, and how often each goes on where the code left it, in a quick run and in a full one
QUICK_BEHAVIORS, BEHAVIORS = (12, 1), (30, 2)
DEPTH = 200


@kind("drive", "the package's own threads take the specification's steps, and come to the same states")
def driven(setting: Setting) -> Found:
    """Every edge of small models is asked for, and simulated behaviors of large ones; what the code never does is
    counted."""
    graphs, behaviors = _graphs(setting), _behaviors(setting)
    wrong = [f"{each.graph.name}: {says}" for each in graphs for says in each.wrong]
    wrong += [f"{each.model.name}: {says}" for each in behaviors for says in each.wrong]
    edges = sum(len(each.graph.edges) for each in graphs)
    taken = sum(len(each.coverage.driven) for each in graphs)
    says = (
        f"{taken:,} of {edges:,} edges of {len(graphs)} models, {sum(never(graphs).values()):,} never; "
        f"{sum(len(each.courses) for each in behaviors):,} behaviors of {len(behaviors)} models, "
        f"{sum(each.ended for each in behaviors):,} to their ends"
    )
    detail = Detail(COLUMNS, (*map(cells, graphs), *map(among_graphs, behaviors)))
    count = sum(each.actions for each in graphs) + sum(each.steps for each in behaviors)
    return Found(count, "actions", wrong, says, detail)


def _graphs(setting: Setting) -> list[Driven]:
    manifest, tools, drives = load_manifest(), find_toolchain(), []
    for model in drivable(QUICK if setting.quick else ()):
        with setting.console.status(f"driving {model.name}"):
            drives.append(drive(dump(model, manifest, tools), runs=QUICK_RUNS if setting.quick else None))
    return drives


def _behaviors(setting: Setting) -> list[Simulated]:
    manifest, tools, drives = load_manifest(), find_toolchain(), []
    behaviors, rounds = QUICK_BEHAVIORS if setting.quick else BEHAVIORS
    simulation = Simulation(behaviors, DEPTH, setting.seed)
    for model in simulable(SIMULATED_QUICK if setting.quick else ()):
        with setting.console.status(f"driving behaviors of {model.name}"):
            drives.append(drive_simulated(model, manifest, tools, simulation, rounds=rounds))
            for course in drives[-1].courses:
                if course.wrong is not None and setting.findings is not None:
                    course.counterexample().save(setting.findings)
    return drives
