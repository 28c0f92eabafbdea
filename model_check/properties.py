"""The page `spec/PROPERTIES.md`: what each property says, how it would look broken, and what only it sees.

`python -m palimpsest_model_check.properties` prints it, from the manifest, from what stands above each property in the
specification, and from the verdicts on mutants.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from .errors import CheckError
from .manifest import DEADLOCK, Manifest, Model, load_manifest
from .mutants.catalogue import KIND
from .mutants.generator import Mutant
from .mutants.report import idle
from .mutants.session import LARGEST, Session
from .words import in_words

HEAD = f"""# The properties, one by one

Written by `python -m palimpsest_model_check.properties`, from the manifest of the models, the comments of the
specification and the verdicts on its mutants; a test compares. What a property would look like broken are its mutants:
mistakes that it catches in the model named (`palimpsest check NAME` shows the steps; `palimpsest check NAME-without`
checks all but that property there). What *only it* sees is a mutant that passes all models where that property is not
checked, of those of at most {LARGEST:,} states (`palimpsest mutants`). Where others see all that it sees, it says who.
"""

_SPECIFICATIONS = (("The prefix cache", "PrefixCache"), ("The host mirror", "HostMirror"))


def page(manifest: Manifest) -> str:
    """The page's text. Raises `CheckError` where it is not known of a property what only it sees, nor why nothing."""
    parts, alone = [HEAD], _sees_alone(Session(manifest))
    for title, module in _SPECIFICATIONS:
        text = (manifest.spec / f"{module}.tla").read_text(encoding="utf-8")
        mine = [
            model for model in manifest.models.values() if (_cases(model) == "HostMirror") == (module == "HostMirror")
        ]
        parts += [f"## {title}\n", *_sections(text, mine, alone)]
    return "\n".join(parts)


def _cases(model: Model) -> str:
    return "HostMirror" if model.module == "MirrorCases" else "PrefixCache"


def _sees_alone(session: Session) -> dict[str, str]:
    """For each property the mutant that only it sees, or why there is none."""
    if session.idle:
        raise CheckError(f"{'; '.join(idle(session.idle))}: `palimpsest mutants` looks for one")
    only = {name: session.mutants[kept["mutant"]] for name, kept in session.verdicts.alone.items()}
    return {name: f"Others see all that it sees. {why}" for name, why in session.explained.properties.items()} | {
        name: f"Only {name} sees `{mutant.name}`: {_quoted(mutant)}" for name, mutant in only.items()
    }


def _quoted(mutant: Mutant) -> str:
    """What a mistake of the catalogue is, in words; of others the change in TLA+."""
    return mutant.says if mutant.kind == KIND else f"`{' '.join(mutant.says.split())}`."


def _sections(text: str, models: Sequence[Model], alone: Mapping[str, str]) -> Iterator[str]:
    mutants = [model for model in models if model.kind == "mutant"]
    for name in dict.fromkeys(str(model.kills) for model in mutants):
        mine = [model for model in mutants if model.kills == name]
        yield "\n".join([f"### {name}\n", *_says(text, name), "", "Broken, it looks like this:\n", *_broken(mine), ""])
        yield alone[name] + "\n"


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


def main() -> int:
    """Print the page; 2 where it cannot be written."""
    try:
        sys.stdout.write(page(load_manifest()))
    except CheckError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
