"""A JVM that starts warm: an ahead-of-time cache of TLC's classes and of what is known of how they run.

A quick model takes a JVM longer to start than to check, and there are a hundred of them. Java 25 keeps the classes
that a run has loaded and linked, and its profiles, in a file (JEP 483, 514, 515). The file is made once per machine, of
a run of a small model, in the user's folder for caches; it is only read where Java and jar are the very ones that it
was made of, and without it everything goes on, slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

#: a small model that reaches most of TLC
TRAINING = "shared-ticket"
#: after so many seconds a run that makes the file is given up, and one that has died is not waited for
LIMIT_S = 120.0


def folder(env: Mapping[str, str] = os.environ) -> Path:
    """The user's folder for such files (`XDG_CACHE_HOME`, or `~/.cache`)."""
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palimpsest"


def archive(java: Path, jar: Path, jar_sha256: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The file for this Java and this jar, which is made if it is not there; None where it cannot be had.

    Takes some seconds the first time. While one process makes it, the others do without.
    """
    try:
        path = folder(env) / f"tlc-{_key(java, jar, jar_sha256)}.aot"
        if not path.exists() and _may_make(path):
            _make(path, java, jar)
        return path if path.exists() and path.stat().st_size else None
    except (OSError, RuntimeError):  # there is no home, or nothing can be written to it
        return None


def _key(java: Path, jar: Path, jar_sha256: str) -> str:
    told = java.stat()
    return hashlib.sha256(f"{java} {told.st_size} {told.st_mtime_ns} {jar} {jar_sha256}".encode()).hexdigest()[:16]


def options(archive: Path) -> list[str]:
    """What Java is started with to use the file; silent where it does not fit."""
    return ["-XX:+IgnoreUnrecognizedVMOptions", f"-XX:AOTCache={archive}", "-Xlog:disable"]


def _may_make(path: Path) -> bool:
    """Whether nobody else makes the file now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    if lock.exists() and time.time() - lock.stat().st_mtime > LIMIT_S:
        lock.unlink(missing_ok=True)
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _make(path: Path, java: Path, jar: Path) -> None:
    """Make the file; an empty one where this Java does not, so that it is not tried again."""
    with tempfile.TemporaryDirectory(dir=path.parent) as room:
        made = Path(room) / path.name
        try:
            _train(made, Path(room), java, jar)
        except (OSError, subprocess.SubprocessError):
            made.unlink(missing_ok=True)
        if not made.exists():
            made.touch()
        made.replace(path)
    path.with_suffix(".lock").unlink(missing_ok=True)


def _train(made: Path, room: Path, java: Path, jar: Path) -> None:
    from .jvm import SMALL
    from .manifest import load_manifest
    from .workspace import prepare

    manifest = load_manifest()
    (model,) = manifest.select([TRAINING])
    module, config = prepare(model, manifest, room)
    command = [str(java), *SMALL.arguments, f"-XX:AOTCacheOutput={made}", f"-Djava.io.tmpdir={room}", "-cp", str(jar)]
    command += ["tlc2.TLC", "-workers", "1", "-metadir", str(room / "states"), "-config", config.name, module.name]
    subprocess.run(command, cwd=room, capture_output=True, timeout=LIMIT_S, check=False)
