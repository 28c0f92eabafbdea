"""The wheel has what an installed user needs: types, the checker under its own name, specs and models."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import palimpsest

ROOT = Path(__file__).parents[2]
CHECK = "palimpsest_model_check"
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "impl", "model_check", "spec")


def files_below(folder: Path, *suffixes: str) -> set[str]:
    found = (path for path in folder.rglob("*") if path.suffix in suffixes)
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """A wheel built from a copy, so that no build folder stays behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy(source, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(out), str(copy)], check=True)
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_every_module_and_says_that_it_is_typed(wheel):
    want = {f"palimpsest/{name}" for name in files_below(ROOT / "impl/palimpsest", ".py", ".typed")}
    names = set(wheel.namelist())
    assert want <= names
    assert "palimpsest/py.typed" in names


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("spec", f"{CHECK}/_data/spec"), ("model_check", CHECK)],
    ids=["spec", "model_check"],
)
def test_the_checker_its_models_and_the_specs_travel_in_the_wheel(wheel, folder, inside):
    if not (ROOT / folder).is_dir():
        pytest.skip(f"there is no {folder}/ yet")
    want = files_below(ROOT / folder, ".py", ".tla", ".cfg", ".toml", ".json", ".java", ".class")
    assert {f"{inside}/{name}" for name in want} <= set(wheel.namelist())


def test_the_wheel_installs_nothing_under_a_common_name(wheel):
    top = {name.split("/")[0] for name in wheel.namelist() if ".dist-info" not in name.split("/")[0]}
    assert top <= {"palimpsest", CHECK}


def test_the_wheel_has_the_command_and_the_version(wheel):
    info = f"palimpsest_cache-{palimpsest.__version__}.dist-info"
    assert "palimpsest = palimpsest.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"Version: {palimpsest.__version__}\n" in wheel.read(f"{info}/METADATA").decode()


def test_every_declared_dependency_is_pinned_for_development():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    pins = {line.split("==")[0].lower() for line in lines if "==" in line and not line.startswith("#")}
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.match(r"[\w.-]+", each).group().lower() for each in wanted} <= pins


def test_importing_the_package_brings_in_no_torch():
    code = "import sys, palimpsest; print('torch' in sys.modules or 'numpy' in sys.modules)"
    path = str(Path(palimpsest.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert found.stdout.strip() == "False"
