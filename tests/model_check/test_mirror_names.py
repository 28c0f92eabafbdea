"""The host mirror's specification has the names of the code: an action for each method of a step."""

from __future__ import annotations

import re
from pathlib import Path

from palimpsest.host_mirror.mirror import HostMirror
from palimpsest.host_mirror.worker import HostMirrorWorker
from palimpsest_model_check.manifest import load_manifest

TEXT = (Path(__file__).resolve().parents[2] / "spec" / "HostMirror.tla").read_text()

#: done by the device
ENVIRONMENT = {"ComputeRuns", "CopyRuns"}


def actions_of_next() -> set[str]:
    found = re.search(r"^Next ==(.*?)^Spec ==", TEXT, re.MULTILINE | re.DOTALL)
    assert found
    lines = [line.strip() for line in found[1].splitlines() if line.strip().startswith("\\/")]
    return {re.match(r"\w+", line.removeprefix("\\/").split(" : ")[-1].strip())[0] for line in lines}


def test_each_action_is_a_method_or_the_devices():
    assert actions_of_next() >= ENVIRONMENT
    for name in actions_of_next() - ENVIRONMENT:
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        owners = [
            owner for owner in (HostMirrorWorker, HostMirror) if hasattr(owner, method) or hasattr(owner, f"_{method}")
        ]
        assert owners, name


def test_each_property_of_the_design_has_a_mutant_that_it_kills():
    design = {
        "OneHostWriter", "HostCopyAfterWrites", "CleanMeansDurable", "AcceptedRowsOnly", "EventNotReused",
        "RestoreKeepsRows", "NoRecycledHotRow",
    }  # fmt: skip
    mirror = [model for model in load_manifest().models.values() if model.module == "MirrorCases"]
    assert {model.kills for model in mirror if model.kind == "mutant"} >= design
    assert all(re.search(rf"^{name} ==", TEXT, re.MULTILINE) for name in design)
