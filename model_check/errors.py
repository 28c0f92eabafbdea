"""The errors of the checker; each says what is missing or wrong, and what to do about it."""

from __future__ import annotations

from palimpsest.errors import PalimpsestError


class CheckError(PalimpsestError):
    """Nothing could be checked."""


class ToolMissingError(CheckError):
    """Java, TLC's jar or the memory to run them is not there."""


class ManifestError(CheckError):
    """The manifest of the models, or a patch in it, does not hold together."""
