"""The docs say what is there: what a page imports exists, each message is one that the code raises."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from palimpsest import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "spec/README.md"]


def blocks(page: Path, language: str) -> Iterator[str]:
    """The code blocks of a language in a page."""
    yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_every_python_block_of_the_docs_is_python_and_imports_what_there_is():
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("palimpsest"):
                    module = importlib.import_module(node.module)
                    missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                    assert missing == [], f"{page.name}: {node.module} has no {missing}"


# ---------------------------------------------------------------- messages

TROUBLE = (ROOT / "docs/troubleshooting.md").read_text()


def texts() -> list[str]:
    """Every string of the package, with `…` for what is filled in."""
    found = []
    for path in (ROOT / "impl/palimpsest").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_message_of_the_page_is_one_of_the_packages():
    known = texts()
    messages = re.findall(r"^\| `([^`]+)` \(`(\w+)`\)", TROUBLE, re.MULTILINE)
    assert len(messages) > 30
    for message, error in messages:
        assert issubclass(getattr(errors, error), errors.PalimpsestError)
        for part in filter(None, (part.strip(" ,;") for part in message.split("…"))):
            assert any(part in text for text in known), f"{part!r} is in no string of the package"


def test_every_error_of_the_package_is_on_the_page():
    families = {"PalimpsestError", "PrefixCacheError", "HostMirrorError"}
    names = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    missing = {name for name in names - families if f"`{name}`" not in TROUBLE}
    assert missing == set()
