"""Every command in the docs is run: here, as it stands or in a variation, or by what `docs_commands.LISTED` names."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from palimpsest import cli
from palimpsest.trace import NdjsonSink
from tests.operator.docs_commands import COMMANDS, LISTED, ROOT, Elsewhere, Instead, well_formed, words
from tests.support import tag_of
from tests.trace.test_replay import busy_run
from tests.view.browser import MISSING, is_there

pytestmark = pytest.mark.forges("the commands replay their own traces")

REQUEST = '{"timestamp": %d, "input_length": 1024, "output_length": 64, "hash_ids": [1, %d]}\n'
CONFIG = "SPECIFICATION Spec\nCONSTANTS Max = 2 Procs = {1}\nINVARIANT InRange\n"


#: commands with all their words, and not only mentioned: what they are run as, where that differs
COMPLETE = list({found.runs if isinstance(found := LISTED.get(line), Instead) else line: None for _, line in COMMANDS})


def to_run() -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """For each page the commands that are run here, in its order, with the exit statuses that are right."""
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    seen = set()
    for page, line in COMMANDS:
        listed = LISTED.get(line)
        if isinstance(listed, Elsewhere) or (line.startswith("make ") and listed is None):
            continue
        command = (listed.runs, listed.exits) if isinstance(listed, Instead) else (line, (0,))
        if command not in seen:
            seen.add(command)
            found.setdefault(page, []).append(command)
    return found


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what commands of the docs read."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("docs", "spec", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "tests/model_check/specs", folder / "small")
    (folder / "small/Counter.cfg").write_text(CONFIG)
    (folder / "trace.jsonl").write_text("".join(REQUEST % (1000 * each, each % 2) for each in range(4)))
    sink = NdjsonSink(folder / "served.ndjson", tag_of)
    busy_run(sink, eager=False)
    sink.close()
    return folder


def recipe(line: str) -> list[str]:
    """What a `make` command runs, of its own target only."""
    made = ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.palimpsest-ready", *words(line)[1:]]
    done = subprocess.run(
        made, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "MAKEFLAGS": ""}
    )
    return [found.strip().removeprefix(".venv/bin/") for found in done.stdout.splitlines()]


def execute(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in this process; gives its exit status."""
    for name, value in re.findall(r"\b([A-Z_]+)=(\S+) ", line.partition("palimpsest")[0] + " "):
        monkeypatch.setenv(name, value)
    program, *arguments = words(line)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # a benchmark sets its own
        if ">" in arguments:
            out = stack.enter_context(Path(arguments[-1]).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(out))
            arguments = arguments[:-2]
        if program == "palimpsest":
            return cli.main(arguments)
        assert program == "python", f"{line}: nothing here runs {program}; docs_commands.LISTED says who does"
        return _python(arguments, monkeypatch)


def _python(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    module = arguments[0] == "-m"
    name, *rest = arguments[1:] if module else arguments
    monkeypatch.setattr(sys, "argv", [name, *rest])
    if not module:
        monkeypatch.syspath_prepend(Path(name).parent)
    monkeypatch.delitem(sys.modules, name, raising=False)  # it is run as a program, whoever imported it
    try:
        (runpy.run_module if module else runpy.run_path)(name, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("page", list(to_run()))
def test_the_commands_of_a_page_run_in_their_order(page, desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    for line, exits in to_run()[page]:
        if "benchmarks.view_page" in line and not is_there():
            pytest.skip(f"NO PAGE WAS LOOKED AT: {MISSING}")
        with monkeypatch.context() as patch:
            status = execute(line, patch)
        printed = capsys.readouterr()
        assert status in exits, f"{line}: {status}\n{printed.out}{printed.err}"


def test_there_are_commands_on_the_pages_that_have_some():
    assert {page for page, _ in COMMANDS} >= {
        "README.md", "tests/README.md", "spec/PROPERTIES.md", "docs/ci.md", "docs/performance.md", "docs/view.md",
        "docs/metrics.md", "model_check/models/README.md",
    }  # fmt: skip


@pytest.mark.parametrize("line", COMPLETE)
def test_a_command_has_targets_flags_and_files_that_exist(line):
    assert well_formed(line) is None


@pytest.mark.parametrize("line", [line for _, line in COMMANDS if line.startswith("make ") and line not in LISTED])
def test_what_make_runs_is_run(line):
    lines = {re.sub(r" --seed \$\(.*?\)| --sample \S+", "", each) for each in recipe(line)}
    assert lines <= {*LISTED, *(line for _, line in COMMANDS)}, f"{line} runs what no test runs"


@pytest.mark.parametrize("line", list(LISTED))
def test_the_list_is_of_commands_that_the_docs_have_and_of_tests_that_there_are(line):
    recipes = {made for _, each in COMMANDS if each.startswith("make ") and each not in LISTED for made in recipe(each)}
    assert line in {line for _, line in COMMANDS} | recipes, f"no page has {line!r} any more"
    entry = LISTED[line]
    if isinstance(entry, Elsewhere):
        assert entry.text in (ROOT / entry.file).read_text(encoding="utf-8"), (
            f"{entry.file} has no {entry.text!r} any more"
        )
    else:
        assert words(entry.runs)[:2] == words(line)[:2] or words(line)[0] == "make", "the same command, smaller"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [("make sideways", "Makefile"), ("python benchmarks/no_such.py", "is not there")],
)
def test_a_command_that_there_is_not_would_be_found(line, wrong):
    assert wrong in (well_formed(line) or "")


def test_an_unknown_flag_would_be_found():
    with pytest.raises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        well_formed("palimpsest replay --sideways x")
