"""One run of TLC: `python -m palimpsest_model_check.tlc SPEC.tla MODEL.cfg [option of TLC...]`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .counterexample import Counterexample, print_counterexample
from .errors import CheckError, ToolMissingError
from .jvm import JAVA_VARIABLE, LARGE, SMALL, Heap, Toolchain, find_toolchain, runs_that_fit
from .output import Kind, Output, Progress, Result

#: a run without a limit of its own
LIMIT_S = 7200.0

_ENDED = "the check was ended before it was done"
_NO_MEMORY = re.compile(
    r"OutOfMemoryError|Could not reserve|insufficient memory|ran out of memory|Too small maximum heap", re.IGNORECASE
)


@dataclass(frozen=True)
class Run:
    """What to check, and with what."""

    module: Path
    config: Path
    workers: int = 1
    heap: Heap = SMALL
    deadlock: bool = True
    limit_s: float = LIMIT_S
    #: further options of TLC
    options: tuple[str, ...] = ()
    #: folders with classes that override operators
    class_path: tuple[Path, ...] = ()


class Runs:
    """The JVMs that are running: all of them can be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[str]] = set()
        self._ended = False

    def start(self, command: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        """A new process, whose both outputs are one pipe."""
        with self._lock:
            if self._ended:
                raise CheckError(_ENDED)
            process = _start(command, cwd)
            self._alive.add(process)
        return process

    @property
    def ended(self) -> bool:
        """Whether the verdict of a process may be that it was killed."""
        with self._lock:
            return self._ended

    def forget(self, process: subprocess.Popen[str]) -> None:
        """The process has ended."""
        with self._lock:
            self._alive.discard(process)

    def end(self) -> None:
        """Kill all, and start no other."""
        with self._lock:
            self._ended = True
            for process in self._alive:
                process.kill()


def _start(command: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except OSError as error:
        raise ToolMissingError(f"{command[0]} cannot be run: {error}; {JAVA_VARIABLE} names another Java") from error


def run_tlc(
    run: Run,
    tools: Toolchain | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    runs: Runs | None = None,
) -> Result:
    """Check one model with TLC, in a folder of its own that is removed afterwards.

    The modules beside `run.module` can be extended. `on_progress` is called with each report that TLC makes.
    Raises `ToolMissingError` where Java, the jar or memory is missing; all else is in the result.
    """
    for path in (run.module, run.config):
        if not path.is_file():
            raise CheckError(f"there is no {path}")
    with tempfile.TemporaryDirectory(prefix="palimpsest-tlc-") as folder:
        room = Path(folder)
        furnish(run, room)
        command = [*(tools or find_toolchain()).command(run.heap, room / "tmp", run.class_path), *arguments(run, room)]
        return watch(command, run, room, on_progress or (lambda _: None), runs or Runs())


def furnish(run: Run, room: Path) -> None:
    """Put what TLC reads into the folder `room`, and what it writes has a place there."""
    (room / "tmp").mkdir()
    spec = room / "spec"
    spec.mkdir()
    # TLC writes beside the module (newer ones a trace module), so it gets a copy
    for module in run.module.parent.glob("*.tla"):
        shutil.copy(module, spec)
    shutil.copy(run.config, spec / "model.cfg")


def arguments(run: Run, room: Path) -> list[str]:
    """The arguments of TLC in the folder `room`."""
    deadlock = [] if run.deadlock else ["-deadlock"]  # the option switches the check off
    where = ["-metadir", str(room / "states"), "-config", "model.cfg"]
    return ["-tool", "-workers", str(run.workers), "-fp", "0", *deadlock, *run.options, *where, run.module.name]


def watch(command: list[str], run: Run, room: Path, on_progress: Callable[[Progress], None], runs: Runs) -> Result:
    """What comes out of a process of TLC that is started in `room`, which `furnish` has filled."""
    output, start = Output(), time.monotonic()
    process = runs.start(command, room / "spec")
    overdue = threading.Event()

    def stop() -> None:
        overdue.set()
        process.kill()

    timer = threading.Timer(run.limit_s, stop)
    timer.start()
    try:
        _read(process, output, on_progress)
        output.finish(process.wait())
    finally:
        timer.cancel()
        _end(process)
        runs.forget(process)
    if runs.ended:
        raise CheckError(_ENDED)
    if overdue.is_set():
        output.kind, output.name = Kind.LIMIT, None
    elif output.kind is Kind.CRASH and _NO_MEMORY.search(said := output.explanation()):
        raise ToolMissingError(f"TLC ran out of memory with a heap of {run.heap.heap_bytes >> 20} MiB:\n{said}")
    return _result(output, time.monotonic() - start, process.returncode)


def _read(process: subprocess.Popen[str], output: Output, on_progress: Callable[[Progress], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        before = output.progress
        output.feed(line)
        if output.progress is not before:
            on_progress(output.progress)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _result(output: Output, seconds: float, status: int) -> Result:
    assert output.kind is not None
    return Result(
        output.kind,
        output.name,
        output.progress,
        tuple(output.steps),
        output.back_to,
        output.explanation(),
        tuple(output.lines),
        seconds,
        status,
        tuple(output.said),
    )


def main(argv: Sequence[str]) -> int:
    """Check one module with a configuration of one's own; prints progress, the verdict and the counterexample."""
    if len(argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        runs_that_fit(LARGE, 1)
        run = Run(Path(argv[0]).resolve(), Path(argv[1]).resolve(), workers=2, heap=LARGE, options=tuple(argv[2:]))
        result = run_tlc(run, on_progress=lambda now: print(f"{now.distinct:,} states, {now.queue:,} queued"))
    except CheckError as error:
        print(error, file=sys.stderr)
        return 2
    _report(run, result)
    return 0 if result.kind is Kind.OK else 1


def _report(run: Run, result: Result) -> None:
    print("\n".join([result.explanation] if result.explanation else result.lines))
    if result.steps:
        print_counterexample(Counterexample.of(run.module.stem, result))
    print(f"{result.verdict}: {result.progress.distinct:,} distinct states, {result.seconds:.1f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
