"""The commands in the docs, and where those are run that `test_docs_commands.py` does not run as they stand.

A command is a line of an `sh` block, a `run` or `entry` of a YAML block, or a code span that begins with a program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from palimpsest import cli

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "spec/README.md", "spec/PROPERTIES.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "model_check").rglob("README.md")),
    *sorted((ROOT / "tests").rglob("*/README.md")),
]
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Instead(NamedTuple):
    """Run in a variation: the same command, smaller or with names where the docs have stand-ins."""

    why: str
    runs: str
    #: exit statuses that are right
    exits: tuple[int, ...] = (0,)


class Elsewhere(NamedTuple):
    """Run by another test or by CI: a file of the repository, and the text in it that does so."""

    why: str
    file: str
    text: str


LONG = "takes minutes"
NAMED = "the docs have stand-ins for names"
CI, PIP = "CI runs it", "installs from an index"
GITHUB = Elsewhere("GitHub's", "tests/unit/test_docs_ci.py", "def test_the_workflow_runs_on_pull_requests")

#: Every command of the docs that is not run as it stands.
LISTED: dict[str, Instead | Elsewhere] = {
    # what make and CI do
    ".ci/run": Elsewhere("it is CI", ".ci/run", 'part "tests" tests'),
    "make test": Elsewhere(CI, ".ci/run", "make test 2>&1"),
    "make lint": Elsewhere(CI, ".ci/run", 'make lint >"$beside"'),
    "make docs": Elsewhere(CI, ".ci/run", 'part "docs" make docs'),
    "make .venv/.palimpsest-ready": Elsewhere("each target of CI asks for it", "Makefile", "test: $(READY)"),
    'make test ARGS="tests/unit -k slots"': Elsewhere(CI, ".ci/run", "make test 2>&1"),
    # the demo
    "palimpsest demo": Instead("serves 400 requests and lets TLC replay them", "palimpsest demo --requests 8 --no-tlc"),
    'make demo ARGS="--trace FILE --requests 400"': Instead(NAMED, "palimpsest demo --trace trace.jsonl --no-tlc"),
    "palimpsest demo --trace-out FILE": Instead(NAMED, "palimpsest demo --requests 4 --no-tlc --trace-out new.ndjson"),
    # the specification
    "palimpsest check": Instead(LONG, "palimpsest check takeover"),
    "palimpsest check --set quick": Instead(LONG, "palimpsest check takeover --set quick"),
    "palimpsest check NAME": Instead(NAMED, "palimpsest check takeover"),
    "palimpsest check MODEL": Instead(NAMED, "palimpsest check takeover"),
    "palimpsest check NAME-without": Elsewhere(
        NAMED, "tests/model_check/test_properties.py", "without_the_property_that_kills_it"
    ),
    "palimpsest check --graph": Elsewhere(LONG, "tests/model_check/test_graph.py", '"--graph"]'),
    "palimpsest check --simulate 1000 --depth 300 --seed 7": Elsewhere(
        LONG, "tests/model_check/test_check.py", '"--simulate"'
    ),
    "palimpsest check general --distributed": Elsewhere(
        "takes hours", "tests/model_check/test_check.py", '"counter", "--distributed", "--jobs", "1"'
    ),
    "palimpsest check general --distributed --host 10.0.0.5 --port 10997": Elsewhere(
        "takes hours, and another machine",
        "tests/model_check/test_check.py",
        '"counter", "--distributed", "--jobs", "1"',
    ),
    "python -m palimpsest_model_check.distributed 10.0.0.5 10997": Elsewhere(
        "serves another machine; --jobs starts such workers here",
        "tests/model_check/test_check.py",
        '"counter", "--distributed", "--jobs", "1"',
    ),
    "python -m palimpsest_model_check.tlc spec/PrefixCache.tla my.cfg": Instead(
        NAMED, "python -m palimpsest_model_check.tlc small/Counter.tla small/Counter.cfg"
    ),
    "palimpsest mutants": Elsewhere(
        LONG, "tests/model_check/test_mutants_verdicts.py", 'cli.main(["mutants", *arguments'
    ),
    "palimpsest mutants --list": Elsewhere(
        "parses 600 mutants", "tests/model_check/test_mutants_verdicts.py", 'palimpsest(tmp_path, "--list")'
    ),
    "palimpsest mutants Drain.guard": Elsewhere(
        LONG, "tests/model_check/test_mutants_verdicts.py", "def test_one_is_run_by_its_name"
    ),
    "palimpsest mutants --code": Instead(LONG, "palimpsest mutants --code done-before-record --jobs 1"),
    # the code
    "palimpsest replay TRACE…": Instead(NAMED, "palimpsest replay served.ndjson --no-tlc"),
    "palimpsest replay": Instead(NAMED, "palimpsest replay served.ndjson --no-tlc"),
    "palimpsest replay FILE": Instead(NAMED, "palimpsest replay served.ndjson --no-tlc"),
    "palimpsest replay mirror.ndjson": Elsewhere(NAMED, "tests/trace/test_mirror_replay.py", 'cli.main(["replay"'),
    "palimpsest drive": Instead(LONG, "palimpsest drive shared-ticket --runs 1"),
    "palimpsest drive --simulate N": Instead(NAMED, "palimpsest drive --simulate 2 --rounds 0 shared-ticket"),
    "palimpsest explore": Instead(LONG, "palimpsest explore one-page"),
    "palimpsest explore --bound 0": Instead(LONG, "palimpsest explore one-page --bound 0"),
    "palimpsest explore --replay FILE --pytest test_race.py": Elsewhere(
        NAMED, "tests/explore/test_command.py", '"--pytest", str(file)]'
    ),
    "pytest -p palimpsest.testing": Elsewhere(NAMED, "tests/conftest.py", 'pytest_plugins = ["palimpsest.testing"'),
    "pytest tests/property/test_generated_programs.py --hypothesis-profile soak": Elsewhere(
        "takes an hour", "tests/conftest.py", 'settings.register_profile("soak"'
    ),
    "pytest tests/scenario -k S17": Elsewhere(CI, ".ci/run", "make test 2>&1"),
    "palimpsest soak": Instead(LONG, "palimpsest soak --seconds 1"),
    # all evidence, pictures, changes
    "palimpsest verify": Elsewhere(LONG, "tests/verify/test_verify.py", 'cli.main(["verify", "--quick", "--jobs", "1"'),
    "palimpsest verify KIND…": Elsewhere(LONG, "tests/verify/test_verify.py", "str(path), *kinds]"),
    "palimpsest verify --html PAGE --markdown FILE": Elsewhere(
        LONG, "tests/view/test_report.py", 'main(["verify", "--html", str(page), "--markdown", str(comment)'
    ),
    "palimpsest verify --quick --html report.html --markdown report.md": Elsewhere(
        LONG, "tests/view/test_report.py", 'main(["verify", "--html", str(page), "--markdown", str(comment)'
    ),
    "palimpsest view FILE": Instead(NAMED, "palimpsest view served.ndjson"),
    "python -m benchmarks.view_page": Instead(
        "opens 10,000 events ten times; how fast it is says nothing on a busy machine",
        "python -m benchmarks.view_page --events 200 --runs 1 --seconds 0.2 --widths 640",
        exits=(0, 1),
    ),
    "palimpsest diff BASE..HEAD": Elsewhere(NAMED, "tests/diff/test_diff.py", 'main(["diff", "HEAD~1..HEAD"'),
    'palimpsest diff "origin/$GITHUB_BASE_REF...HEAD" --markdown diff.md': Elsewhere(
        NAMED, "tests/diff/test_diff.py", '"--markdown", str(tmp_path / "diff.md")]'
    ),
    # speed
    "palimpsest bench": Instead(LONG, "palimpsest bench a --quick --repeats 1 --json run.json"),
    "palimpsest bench a d --growth --tracing --json run.json": Instead(
        "takes minutes; test_bench.py measures growth and tracing",
        "palimpsest bench a --quick --repeats 1 --json run.json",
    ),
    "palimpsest bench --compare before.json after.json": Instead(NAMED, "palimpsest bench --compare run.json run.json"),
    "palimpsest bench a f --against HEAD~1": Elsewhere(LONG, "tests/unit/test_bench.py", '"a", "--against", "HEAD"]'),
    "palimpsest bench --device cuda": Elsewhere("needs an accelerator", "docs/measured/h200.json", '"device"'),
    "python benchmarks/operator_costs.py": Instead(LONG, "python benchmarks/operator_costs.py a --quick --repeats 1"),
    # what is installed, and GitHub's
    "pip install --extra-index-url https://download.pytorch.org/whl/cpu --editable '.[dev]'": Elsewhere(
        PIP, "Makefile", "--editable '.[dev]'"
    ),
    "touch report.md diff.md": GITHUB,
    "cat report.md diff.md > comment.md": GITHUB,
    'cat comment.md >> "$GITHUB_STEP_SUMMARY"': GITHUB,
    'gh pr comment "${{ github.event.pull_request.number }}" --edit-last --create-if-none '
    "--body-file comment.md": GITHUB,
    "pip install 'palimpsest-cache[metrics]'": Elsewhere(PIP, "pyproject.toml", "\nmetrics = ["),
    "pip install 'palimpsest-cache[otel]'": Elsewhere(PIP, "pyproject.toml", "\notel = ["),
    "pip install 'palimpsest-cache[view]'": Elsewhere(PIP, "pyproject.toml", "\nview = ["),
    "pip install 'palimpsest-cache[mutants]'": Elsewhere(PIP, "pyproject.toml", "\nmutants = ["),
}


class Command(NamedTuple):
    """A command and the page that has it first."""

    page: str
    line: str


#: what a command reads up to a line of its own, with that line
_HERE_DOCUMENT = re.compile(r" <<'(\w+)'\n.*?^\1$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = re.compile(r"(?:\w+=\S+ )*(?:(?:palimpsest|make|python|pytest|pip|git) [\w.\[\"'-]|\.ci/run)")


def commands() -> list[Command]:
    """The commands of all pages, in their order, each once; of the tutorial only what its own test does not run."""
    found: dict[str, str] = {}
    for page in PAGES:
        blocks = ("yaml",) if page.name == "tutorial.md" else ("sh", "yaml")
        for line in _of_page(page.read_text(encoding="utf-8"), blocks):
            found.setdefault(line, page.relative_to(ROOT).as_posix())
    return [Command(page, line) for line, page in found.items()]


def _of_page(text: str, blocks: Sequence[str]) -> Iterator[str]:
    for _, language, block in _BLOCK.findall(text):
        if language not in blocks:
            continue
        if language == "sh":
            yield from _lines(block)
        else:
            for value in _values(yaml.safe_load(block), ("run", "entry")):
                yield from _lines(value)
    for span in re.findall(r"`([^`]+)`", _BLOCK.sub("", text)):
        if _PROGRAMS.match(span):
            yield " ".join(span.split())


def _lines(block: str) -> Iterator[str]:
    for line in _HERE_DOCUMENT.sub("", block).replace("\\\n", " ").splitlines():
        if command := re.sub(r"\s+#.*", "", line).strip().removeprefix("#"):
            yield command


def _values(node: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """The texts that stand under these keys, however deep."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key in keys and isinstance(value, str):
            yield value
        else:
            yield from _values(value, keys)


def words(line: str) -> list[str]:
    """A command's words, without variables set in front of it."""
    found = shlex.split(line, comments=True)
    return found[next(at for at, word in enumerate(found) if not re.match(r"\w+=", word)) :]


def well_formed(line: str) -> str | None:
    """What is wrong with a command's own words, whatever it would do: an unknown target, flag or file."""
    program, *arguments = words(line)
    if program == "make" and (
        unknown := {word for word in arguments if "=" not in word and word[0] != "."} - MAKE_TARGETS
    ):
        return f"{unknown} in no Makefile"
    if program == "palimpsest":
        cli._parser(arguments).parse_args(arguments)  # exits where a flag is unknown
    missing = [
        w for w in arguments if re.fullmatch(r"(benchmarks|docs|tests)/[\w./]+\.(py|md)", w) and not (ROOT / w).exists()
    ]
    return f"{missing} is not there" if missing else None


COMMANDS = commands()
