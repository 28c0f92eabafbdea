"""One model checked by several processes: TLC's server, and workers that may be on other machines.

The server has the queue and the states seen so far, workers compute successors and check them. TLC checks in this mode
that nothing bad happens (invariants, properties of steps, deadlock), not that something good does.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .errors import CheckError
from .jvm import SMALL, Toolchain, find_toolchain
from .manifest import Model
from .output import Kind, Progress, Result
from .tlc import Run, Runs, arguments, furnish, watch

SERVER, WORKER = "tlc2.tool.distributed.TLCServer", "tlc2.tool.distributed.TLCWorker"
_PORT, _THREADS = f"{SERVER}.port", f"{WORKER}.threadCount"
_HERE = "127.0.0.1"


def run_distributed(
    run: Run,
    tools: Toolchain,
    on_progress: Callable[[Progress], None] | None = None,
    runs: Runs | None = None,
    *,
    workers: int,
    host: str = _HERE,
    port: int | None = None,
) -> Result:
    """Check `run` with a server and `workers` processes of one thread on this machine; with none, the server waits for
    workers elsewhere.

    The server listens as `host`, at `port` or at one that is free. Raises `ToolMissingError` as `run_tlc` does.
    """
    runs = runs or Runs()
    with tempfile.TemporaryDirectory(prefix="palimpsest-tlc-") as folder:
        room, port = Path(folder), port or _free_port()
        furnish(run, room)
        properties: dict[str, str | int] = {_PORT: port, "java.rmi.server.hostname": host}
        command = tools.command(run.heap, room / "tmp", program=SERVER, properties=properties)
        with _workers(workers, worker_command(tools, room, host, port), room, runs):
            return _named(watch([*command, *_arguments(run, room)], run, room, on_progress or (lambda _: None), runs))


def worker_command(tools: Toolchain, room: Path, host: str, port: int) -> list[str]:
    """The command line of a worker of one thread for the server at `host`."""
    command = tools.command(SMALL, room, program=WORKER, properties={_PORT: port, _THREADS: 1})
    return [*command, host]


def _arguments(run: Run, room: Path) -> list[str]:
    given = arguments(run, room)
    at = given.index("-workers")  # the server has none of its own
    return given[:at] + given[at + 2 :]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _workers(count: int, command: list[str], room: Path, runs: Runs) -> Iterator[None]:
    """Inside, `count` workers look for the server and work; they end with it."""
    processes = []
    try:
        for number in range(count):
            own = room / f"worker{number}"
            own.mkdir()
            given = [part.replace(f"-Djava.io.tmpdir={room}", f"-Djava.io.tmpdir={own}") for part in command]
            process = runs.start(given, own)
            processes.append(process)
            assert process.stdout is not None
            threading.Thread(target=process.stdout.read, daemon=True).start()  # else the pipe fills
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            runs.forget(process)


def _named(result: Result) -> Result:
    """TLC's server shows the last step of a violation, and not what it violates."""
    if result.kind is Kind.CRASH and result.steps:
        says = "Something is violated by this last step; TLC names it where one process checks the model."
        return replace(result, kind=Kind.UNNAMED, explanation=says)
    return result


def require_safety(models: Sequence[Model]) -> None:
    """Raise `CheckError` where a model asks for what this mode does not check."""
    for model in models:
        if model.kind != "model" or model.specification == "LiveSpec":
            raise CheckError(
                f"model {model.name}: TLC's distributed mode is for models that must hold, and does not check what "
                "comes in the end"
            )


def main(argv: Sequence[str]) -> int:
    """Work for the server at HOST and PORT until it is done."""
    if len(argv) != 2 or not argv[1].isdecimal():
        print("python -m palimpsest_model_check.distributed HOST PORT: a worker, of one thread", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="palimpsest-worker-") as folder:
        return subprocess.run(
            worker_command(find_toolchain(), Path(folder), argv[0], int(argv[1])), check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
