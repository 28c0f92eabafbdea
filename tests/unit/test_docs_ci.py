"""docs/ci.md and docs/view.md: what is there to be copied is well formed, and each command in it is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from palimpsest import cli
from palimpsest_model_check.explore.scenarios import SCENARIOS
from palimpsest_model_check.manifest import load_manifest

DOCS = Path(__file__).parents[2] / "docs"
_COMMAND = re.compile(r"palimpsest (?:[a-z]+)(?: [^\n`|;]*)?")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def workflow() -> dict[str, Any]:
    return yaml.safe_load(blocks("ci.md", "yaml")[0])


def hooks() -> list[dict[str, Any]]:
    return yaml.safe_load(blocks("ci.md", "yaml")[1])["repos"][0]["hooks"]


def lines() -> list[str]:
    run = [step["run"] for step in workflow()["jobs"]["protocol"]["steps"] if "run" in step]
    shell = [*run, *(hook["entry"] for hook in hooks()), *blocks("view.md", "sh")]
    return [line for text in shell for line in text.splitlines() if "palimpsest " in line]


@pytest.mark.parametrize("line", lines())
def test_each_command_in_the_docs_is_one_that_the_command_line_takes(line):
    if (found := _COMMAND.search(line)) is None or "pip install" in line:
        pytest.skip("no command of palimpsest")
    words = shlex.split(found[0].replace("$GITHUB_BASE_REF", "main").replace('"$file"', "file.json"))
    args = cli._parser(words[1:]).parse_args(words[1:])
    assert set(getattr(args, "models", ())) <= set(load_manifest().models)
    assert set(getattr(args, "scenarios", ())) <= set(SCENARIOS)


def test_the_workflow_runs_on_pull_requests_with_the_whole_history():
    flow = workflow()
    assert flow[True] == "pull_request", "YAML takes the key `on` for true"
    checkout = flow["jobs"]["protocol"]["steps"][0]
    assert checkout["with"]["fetch-depth"] == 0, "diff needs the commit where the branches parted"
    said = [step for step in flow["jobs"]["protocol"]["steps"] if step.get("if") == "always()"]
    assert len(said) == 2, "the verdict is told when it is a bad one, too"


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_a_hook_is_for_files_that_there_are(hook):
    root = DOCS.parent
    files = [path.relative_to(root).as_posix() for path in root.rglob("*") if ".venv" not in path.parts]
    assert any(re.match(hook["files"], file) for file in files)
    assert hook["pass_filenames"] is False
