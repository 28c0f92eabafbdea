"""Where the specification and the models are: in a checkout, and in an installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

MODELS = _PACKAGE / "models"
MANIFEST = MODELS / "manifest.toml"
WORDS = MODELS / "words.toml"


def spec_folder() -> Path:
    """The folder of the specification: the package's data, or `spec/` beside the package's source."""
    installed = _PACKAGE / "_data" / "spec"
    return installed if installed.is_dir() else _PACKAGE.parent / "spec"
