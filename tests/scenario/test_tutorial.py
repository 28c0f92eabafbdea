"""docs/tutorial.md, run as it stands: each command exits as it says, and prints what is shown below it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXITS = re.compile(r"# exits with (\d+)")


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_tutorials_commands_do_what_it_says(tmp_path):
    shutil.copytree(ROOT / "impl", tmp_path / "impl", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "COLUMNS": "200"}
    printed, ran = "", 0
    for kind, block in _BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        if kind == "text":
            for line in block.splitlines():
                assert one_line(line) in printed, f"the tutorial shows {line!r}, and this was printed: {printed}"
            continue
        if assignment := re.search(r"^export (\w+)=(\S+)$", block, re.MULTILINE):
            environment[assignment[1]] = assignment[2]
        done = subprocess.run(
            ["bash", "-euc", block], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        expected = _EXITS.search(block)
        assert done.returncode == int(expected[1] if expected else 0), f"{block}{done.stdout}{done.stderr}"
        printed, ran = one_line(done.stdout), ran + 1
    assert ran == 7
    assert "palimpsest-committer" in (tmp_path / "build/save-waits-for-the-last-write.json").read_text()
    assert "RecordBeforeWake" in (tmp_path / "build/race.html").read_text()


def test_each_scenario_and_model_of_the_tutorial_is_there():
    from palimpsest_model_check.explore.scenarios import SCENARIOS
    from palimpsest_model_check.manifest import load_manifest

    text = TUTORIAL.read_text(encoding="utf-8")
    assert set(re.findall(r"palimpsest explore ([a-z][a-z-]+)", text)) <= set(SCENARIOS)
    assert set(re.findall(r"palimpsest check ([a-z][a-z-]+)", text)) <= set(load_manifest().models)
