"""Evidence that specification and code go together."""

from __future__ import annotations

from ..drive.drive import drive
from ..drive.graph import dump
from ..drive.models import QUICK, drivable
from ..drive.report import COLUMNS, cells, never
from ..jvm import find_toolchain
from ..manifest import load_manifest
from .evidence import Detail
from .kind import Found, Setting, kind

#: runs of a model in a quick run
QUICK_RUNS = 200


@kind("drive", "the package's own threads take the specification's steps, and come to the same states")
def driven(setting: Setting) -> Found:
    """Every edge of small models is asked for; what the code never does is counted."""
    manifest, tools, drives = load_manifest(), find_toolchain(), []
    for model in drivable(QUICK if setting.quick else ()):
        with setting.console.status(f"driving {model.name}"):
            drives.append(drive(dump(model, manifest, tools), runs=QUICK_RUNS if setting.quick else None))
    wrong = [f"{each.graph.name}: {says}" for each in drives for says in each.wrong]
    edges = sum(len(each.graph.edges) for each in drives)
    taken = sum(len(each.coverage.driven) for each in drives)
    says = f"{taken:,} of {edges:,} edges of {len(drives)} models, {sum(never(drives).values()):,} never"
    detail = Detail(COLUMNS, tuple(map(cells, drives)))
    return Found(sum(each.actions for each in drives), "actions", wrong, says, detail)
