"""The docs say what is there: each command runs or has flags that exist, each message is one that the code raises."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest import cli, errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "spec/README.md"]
#: commands that are over in a few seconds, by the beginning of their arguments; the others are only parsed
QUICK = (["explore", "--list"], ["check", "--list"], ["--help"])
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
#: programs of others, which a page may name
OTHERS = {"cat", "mkdir", "pip", "python", "pytest", "cp", "cd", "git", "sed", "export"}

#: what a command reads up to a line of its own, with that line
HERE_DOCUMENT = re.compile(r" <<'(\w+)'\n.*?^\1$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> Iterator[str]:
    """The code blocks of a language in a page."""
    yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Page and line of each command in the docs' `sh` blocks, lines that go on put together."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            lines = HERE_DOCUMENT.sub("", block).replace("\\\n", " ").splitlines()
            found += [(page.name, line.strip()) for line in lines if line.strip() and not line.strip().startswith("#")]
    return found


def words(line: str) -> list[str]:
    """A command's words, without variables set in front of it."""
    found = shlex.split(line, comments=True)
    return found[next(at for at, word in enumerate(found) if not re.match(r"\w+=", word)) :]


COMMANDS = commands()
#: each command once, with the page that has it first
ONCE = list({line: page for page, line in reversed(COMMANDS)}.items())


def test_there_are_commands_in_the_docs():
    assert {page for page, _ in COMMANDS} >= {"README.md", "index.md", "performance.md", "metrics.md"}


@pytest.mark.parametrize("line", [line for line, _ in ONCE], ids=[f"{page}: {line}" for line, page in ONCE])
def test_a_command_of_the_docs_exists_with_its_flags_and_runs_where_it_is_quick(line, capsys):
    program, *arguments = words(line)
    if program == "make":
        targets = {word for word in arguments if "=" not in word}
        assert targets <= MAKE_TARGETS, f"{targets - MAKE_TARGETS} in no Makefile"
    elif program == "palimpsest":
        cli._parser(arguments).parse_args(arguments)  # exits where a flag is unknown
        if any(arguments[: len(quick)] == quick for quick in QUICK):
            assert cli.main(arguments) == 0
            assert capsys.readouterr().out
    else:
        assert program in OTHERS or program == ".ci/run", f"nobody knows {program}"
    for word in arguments:
        if re.fullmatch(r"(benchmarks|docs|tests)/[\w./]+\.(py|md)", word):
            assert (ROOT / word).exists(), word


def test_every_python_block_of_the_docs_is_python_and_imports_what_there_is():
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("palimpsest"):
                    module = importlib.import_module(node.module)
                    missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                    assert missing == [], f"{page.name}: {node.module} has no {missing}"


def test_an_unknown_flag_would_be_found():
    with pytest.raises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        cli._parser(["replay"]).parse_args(["replay", "--sideways", "x"])


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
