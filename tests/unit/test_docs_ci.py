"""docs/ci.md: what is there to be copied is well formed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def workflow() -> dict[str, Any]:
    return yaml.safe_load(blocks("ci.md", "yaml")[0])


def hooks() -> list[dict[str, Any]]:
    return yaml.safe_load(blocks("ci.md", "yaml")[1])["repos"][0]["hooks"]


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
    folders = ("impl", "model_check", "spec")
    files = [path.relative_to(root).as_posix() for folder in folders for path in (root / folder).rglob("*")]
    assert any(re.match(hook["files"], file) for file in files)
    assert hook["pass_filenames"] is False
