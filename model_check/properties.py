"""The page `spec/PROPERTIES.md`: what each property says, how it would look broken, and what only it sees.

`python -m palimpsest_model_check.properties` prints it, from the manifest and from what stands above each property in
the specification.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from .manifest import DEADLOCK, OK, Manifest, Model, load_manifest
from .words import in_words

HEAD = """# The properties, one by one

Written by `python -m palimpsest_model_check.properties`, from the manifest of the models and the comments of the
specification; a test compares. What a property would look like broken are its mutants: mistakes that it catches in the
model named (`palimpsest check NAME` shows the steps). What *only it* sees is a mutant that nothing else catches in its
model: `palimpsest check NAME-without` checks all but that property. Where every mutant of a property is seen by others,
too, the one named says what else would have told.
"""

_SPECIFICATIONS = (("The prefix cache", "PrefixCache"), ("The host mirror", "HostMirror"))


def page(manifest: Manifest) -> str:
    """The page's text."""
    parts = [HEAD]
    for title, module in _SPECIFICATIONS:
        text = (manifest.spec / f"{module}.tla").read_text(encoding="utf-8")
        mine = [
            model for model in manifest.models.values() if (_cases(model) == "HostMirror") == (module == "HostMirror")
        ]
        parts += [f"## {title}\n", *_sections(text, mine)]
    return "\n".join(parts)


def _cases(model: Model) -> str:
    return "HostMirror" if model.module == "MirrorCases" else "PrefixCache"


def _sections(text: str, models: Sequence[Model]) -> Iterator[str]:
    mutants = [model for model in models if model.kind == "mutant"]
    for name in dict.fromkeys(str(model.kills) for model in mutants):
        mine = [model for model in mutants if model.kills == name]
        yield "\n".join([f"### {name}\n", *_says(text, name), "", "Broken, it looks like this:\n", *_broken(mine), ""])
        yield _alone(name, mine) + "\n"


def _says(text: str, name: str) -> list[str]:
    comment = re.search(rf"((?:^\\\*.*\n)+)(?={name} ==)", text, re.MULTILINE)
    words = [line.removeprefix("\\*").strip() for line in comment[1].splitlines()] if comment else []
    says = (
        in_words(name)
        if name != DEADLOCK
        else "Where nothing can happen any more, all is quiet (`Quiet` in `Cases.tla`)."
    )
    return [says, *(["", "> " + " ".join(words)] if words else [])]


def _broken(mutants: Sequence[Model]) -> list[str]:
    return [f"- {model.purpose} (`{model.name}`)" for model in mutants]


def _alone(name: str, mutants: Sequence[Model]) -> str:
    if only := [model.name for model in mutants if model.without == OK]:
        return f"Only {name} sees `{only[0]}`."
    if also := [model for model in mutants if model.without]:
        return f"No mutant here is seen by {name} alone: without it, {also[0].without} sees `{also[0].name}`."
    return "Whether another property would see these mutants is not checked."


def main() -> int:
    """Print the page."""
    sys.stdout.write(page(load_manifest()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
