"""The files of a commit that say what the protocol is, in a folder of their own."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from ..errors import CheckError

#: what is read of a commit: the specification, the models, the verdicts, and the declarations of the code
PATHS = (
    "spec", "model_check/models", "model_check/mutants", "impl/palimpsest/lifecycle.py", "impl/palimpsest/actions.py",
)  # fmt: skip


class DiffError(CheckError):
    """Commits that cannot be compared."""


def git(repository: Path, *arguments: str) -> bytes:
    """What git prints. Raises `DiffError` with what it says."""
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
    except OSError as error:
        raise DiffError(f"git cannot be run: {error}") from error
    if done.returncode:
        raise DiffError(f"git {' '.join(arguments[:2])}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def revisions(repository: Path, text: str) -> tuple[str, str]:
    """The two commits of `BASE..HEAD`, of `BASE` (up to HEAD) or of `BASE...HEAD` (from where they parted)."""
    if "..." in text:
        base, _, head = text.partition("...")
        base = git(repository, "merge-base", base or "HEAD", head or "HEAD").decode().strip()
    else:
        base, _, head = text.partition("..")
    found = [git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{each or 'HEAD'}^{{commit}}")
             for each in (base, head)]  # fmt: skip
    return found[0].decode().strip(), found[1].decode().strip()


def checked_out(repository: Path, commit: str, folder: Path) -> Path:
    """`folder`, filled with those of `PATHS` that the commit has. Raises `DiffError` where it has no specification."""
    listed = git(repository, "ls-tree", "-r", "--name-only", "-z", commit, "--", *PATHS).decode().split("\0")
    there = [path for path in PATHS if any(each == path or each.startswith(f"{path}/") for each in listed)]
    if "spec" not in there:
        raise DiffError(f"the commit {commit[:12]} has no specification: there is no spec/ in it")
    archive = git(repository, "archive", "--format=tar", commit, "--", *there)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def touched(repository: Path, base: str, head: str) -> list[str]:
    """The paths that differ between two commits."""
    return [each for each in git(repository, "diff", "--name-only", "-z", base, head).decode().split("\0") if each]
