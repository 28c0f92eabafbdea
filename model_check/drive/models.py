"""The models that are driven: those of the prefix cache, and for their whole graph those that are small."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CheckError
from ..manifest import Model, load_manifest

#: driven where none is named, and in the quick run of all evidence
CHOSEN = (
    "shared-ticket", "live-deferred", "live-end", "stalled-end", "shutdown-deferred", "takeover", "appended",
    "failure-deferred",
)  # fmt: skip
QUICK = ("shared-ticket", "live-end")


def drivable(names: Sequence[str]) -> list[Model]:
    """The models of these names, the chosen ones where none is named. Raises `CheckError` for what cannot be driven."""
    models = load_manifest().select(list(names) or list(CHOSEN))
    if unfit := [model.name for model in models if model.module != "Cases" or model.is_large or model.mutates]:
        raise CheckError(f"only small models of the prefix cache can be driven, and not {', '.join(unfit)}")
    return models


#: simulated where none is named: those that no graph is driven of, with what the small ones leave out
SIMULATED = ("general", "takeovers", "failures", "all-faults", "window", "reset", "beyond")
SIMULATED_QUICK = ("general",)


def simulable(names: Sequence[str]) -> list[Model]:
    """As `drivable`, for simulated behaviors: models of any size."""
    models = load_manifest().select(list(names) or list(SIMULATED))
    if unfit := [model.name for model in models if model.module != "Cases" or model.mutates]:
        raise CheckError(f"only models of the prefix cache can be driven, and not {', '.join(unfit)}")
    return models
