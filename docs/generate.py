"""Writes what of the docs is made from the code: `python docs/generate.py`, with `--check` to only compare.

A part of a page stands between `<!-- generated: NAME -->` and `<!-- end -->`; pictures are files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pictures

from palimpsest.metrics import declarations, mirror
from palimpsest.prefix_cache import settings

DOCS = Path(__file__).parent

PARTS: dict[str, Callable[[], str]] = {
    "life cycles": pictures.lifecycles,
    "metrics": declarations.as_table,
    "mirror metrics": mirror.as_table,
    "settings": settings.as_table,
}

_PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A page with its parts made anew. Raises `KeyError` for a part that nobody makes."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[4]}", text)


def stale() -> dict[Path, str]:
    """The pages and pictures that are not what the code says, and what they should be."""
    fresh = {page: rendered(page.read_text(encoding="utf-8")) for page in sorted(DOCS.rglob("*.md"))}
    fresh |= {DOCS / "pictures" / name: text for name, text in pictures.pictures().items()}
    return {file: text for file, text in fresh.items() if not file.exists() or file.read_text(encoding="utf-8") != text}


def main() -> int:
    """Write what is stale, or with `--check` only name it; 1 when something is stale then."""
    files = stale()
    for file, text in files.items():
        print(file.relative_to(DOCS.parent))
        if "--check" not in sys.argv:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return 1 if files and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
