"""Writes the parts of the docs that are made from the code: `python docs/generate.py`, with `--check` to only compare.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from palimpsest.metrics import declarations, mirror
from palimpsest.prefix_cache import settings

DOCS = Path(__file__).parent

PARTS: dict[str, Callable[[], str]] = {
    "metrics": declarations.as_table,
    "mirror metrics": mirror.as_table,
    "settings": settings.as_table,
}

_PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A page with its parts made anew. Raises `KeyError` for a part that nobody makes."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[4]}", text)


def stale() -> dict[Path, str]:
    """The pages that are not what the code says, and what they should be."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    fresh = {page: rendered(text) for page, text in pages.items()}
    return {page: text for page, text in fresh.items() if text != pages[page]}


def main() -> int:
    """Write the stale pages, or with `--check` only name them; 1 when one is stale then."""
    pages = stale()
    for page, text in pages.items():
        print(page.relative_to(DOCS.parent))
        if "--check" not in sys.argv:
            page.write_text(text, encoding="utf-8")
    return 1 if pages and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
