"""Checks models of the manifest with TLC, several at a time, and says which verdicts are a surprise."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from .errors import CheckError, ManifestError
from .jvm import LARGE, SMALL, Toolchain, runs_that_fit
from .manifest import OK, Manifest, Model
from .output import Kind, Progress, Result
from .tlc import Run, Runs, run_tlc
from .workspace import prepare

#: checks one run: `run_tlc`, or what takes its place
Way = Callable[[Run, Toolchain, Callable[[Progress], None], Runs], Result]

_BY_PROPERTY = (Kind.INVARIANT, Kind.ACTION_PROPERTY, Kind.TEMPORAL_PROPERTY)


@dataclass(frozen=True)
class Outcome:
    """What came out of one model, and what is surprising about it."""

    model: Model
    result: Result | None
    surprise: str | None

    @property
    def verdict(self) -> str:
        """The result's, or that there is none."""
        return self.result.verdict if self.result else "not checked"


class Listener(Protocol):
    """Is told how the models go, by several threads."""

    def started(self, model: Model) -> None:
        """TLC has been started."""

    def progressed(self, model: Model, progress: Progress) -> None:
        """TLC says how far it is."""

    def finished(self, outcome: Outcome) -> None:
        """TLC has ended."""


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Simulation:
    """Random behaviors instead of all: so many, of at most so many steps, the same ones for the same seed."""

    behaviors: int
    depth: int
    seed: int

    @property
    def options(self) -> tuple[str, ...]:
        """What TLC is told."""
        return self._options(f"num={self.behaviors}")

    def written(self, files: Path) -> tuple[str, ...]:
        """As `options`, with each behavior in a file of its own: their names begin as `files`."""
        return self._options(f"file={files},num={self.behaviors}")

    def _options(self, what: str) -> tuple[str, ...]:
        return ("-simulate", what, "-depth", str(self.depth), "-seed", str(self.seed))


@dataclass
class Checker:
    """Runs TLC on models: `jobs` small ones at a time with a worker each, a large one alone with `jobs` workers."""

    manifest: Manifest
    tools: Toolchain
    jobs: int
    listener: Listener
    fits: Callable[..., int] = runs_that_fit
    simulation: Simulation | None = None
    way: Way = run_tlc

    def check(self, models: Sequence[Model]) -> list[Outcome]:
        """An outcome for each of `models`, in their order. Raises `ToolMissingError` where TLC cannot run."""
        small = [model for model in models if not model.is_large]
        large = [model for model in models if model.is_large]
        found: dict[str, Outcome] = {}
        runs = Runs()
        if small:
            self._all(small, self.fits(SMALL, min(self.jobs, len(small))), found, runs)
        for model in large:
            self.fits(LARGE, 1)
            found[model.name] = self._one(model, self.jobs, runs)
        return [found[model.name] for model in models]

    def _all(self, models: Sequence[Model], at_once: int, found: dict[str, Outcome], runs: Runs) -> None:
        with ThreadPoolExecutor(at_once) as pool:
            # the longest first, so that none is left alone at the end
            order = sorted(models, key=lambda model: -(model.states or 0))
            futures = [pool.submit(self._one, model, 1, runs) for model in order]
            try:
                found.update((outcome.model.name, outcome) for outcome in _results(futures))
            except BaseException:
                for future in futures:
                    future.cancel()
                runs.end()
                raise

    def _one(self, model: Model, workers: int, runs: Runs) -> Outcome:
        self.listener.started(model)
        try:
            result = self._named(model, self._run(model, workers, runs), workers, runs)
            outcome = Outcome(model, result, surprise(model, result, counted=self.simulation is None))
        except ManifestError as error:
            outcome = Outcome(model, None, str(error))
        self.listener.finished(outcome)
        return outcome

    def _run(self, model: Model, workers: int, runs: Runs) -> Result:
        with tempfile.TemporaryDirectory(prefix="palimpsest-model-") as folder:
            module, config = prepare(model, self.manifest, Path(folder))
            options = self.simulation.options if self.simulation else ()
            threads = 1 if self.simulation else workers  # with more, the seed does not say which behaviors they are
            run = Run(module, config, threads, model.heap, model.deadlock, model.limit_s, options)
            return self.way(run, self.tools, lambda progress: self.listener.progressed(model, progress), runs)

    def _named(self, model: Model, result: Result, workers: int, runs: Runs) -> Result:
        """`result` with the violated property's name: TLC has none for a temporal one, and a place for a part."""
        if result.kind not in _BY_PROPERTY or result.name in (*model.invariants, *model.properties):
            return result
        if len(model.properties) == 1:
            return replace(result, name=model.properties[0])
        for name in sorted(model.properties, key=lambda each: each != model.expect):
            alone = self._run(replace(model, properties=(name,), invariants=(), deadlock=False), workers, runs)
            if alone.kind in _BY_PROPERTY:
                return replace(result, name=name, steps=alone.steps, back_to=alone.back_to)
        return result


def _results(futures: Iterable[Future[Outcome]]) -> Iterable[Outcome]:
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()  # raises first what went wrong
    return [future.result() for future in futures]


def surprise(model: Model, result: Result, *, counted: bool = True) -> str | None:
    """What about `result` the manifest does not expect, or None; distinct states where they were `counted`."""
    if result.verdict != model.expect:
        return f"{result.verdict}, and {_expected(model)} is expected"
    if model.expect != OK:
        return None
    states = result.progress.distinct if counted else result.progress.generated
    if states == 0:
        return "no states: nothing was checked"
    if counted and model.states is not None and states != model.states:
        return f"{states:,} distinct states, and {model.states:,} are expected"
    return None


def _expected(model: Model) -> str:
    return model.expect if model.expect == OK else f"a violation of {model.expect}"


def check(
    manifest: Manifest,
    models: Sequence[Model],
    tools: Toolchain,
    jobs: int,
    listener: Listener,
    *,
    simulation: Simulation | None = None,
    way: Way = run_tlc,
) -> list[Outcome]:
    """An outcome for each of `models`: of all its behaviors, or of a `simulation`'s."""
    if not models:
        raise CheckError(f"no models to check in {manifest.path}")
    return Checker(manifest, tools, jobs, listener, simulation=simulation, way=way).check(models)
