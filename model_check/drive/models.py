"""The models that are driven: those of the prefix cache that are small."""

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
