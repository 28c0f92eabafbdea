"""What a property says, in words, for a reader who does not know its name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from .places import WORDS

#: verdicts that are no property of the specification
_GENERAL = {
    "ok": "Everything that was checked holds.",
    "Deadlock": "The protocol reaches a state that nothing leads out of.",
}


@cache
def load_words(path: Path = WORDS) -> Mapping[str, str]:
    """Each property's name and its sentence."""
    words = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {**_GENERAL, **{name: str(sentence) for name, sentence in words.items()}}


def in_words(name: str, purpose: str = "") -> str:
    """The sentence for the property `name`; `purpose`, the model's, where it has none of its own."""
    return load_words().get(name) or purpose or f"The property {name} of the specification."
