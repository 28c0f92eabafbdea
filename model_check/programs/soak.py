"""The soak: random programs with faults for as long as it is told, and what they leave behind."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import psutil

from ..replay.recording import Recording
from . import faults, wrong
from .batch import Draw
from .program import Program

#: memory that may be in use at the end and was not in the soak's second quarter: what the allocator keeps, not a leak
#: (a leak of one page of rows for each life is many times that in ten minutes)
SLACK_BYTES = 24 << 20
#: actions of a cache's life
LIFE = 120

#: how often each action is taken, of all
ACTIONS: list[tuple[int, Callable[[Program, Draw], None]]] = [
    (40, Program.step),
    (36, Program.consume),
    (6, Program.collect),
    (6, wrong.call_badly),
    (4, wrong.save_badly),
    (4, faults.fail_a_save),
    (3, Program.reset),
    (1, faults.fail_a_write),
]
_TOTAL = sum(weight for weight, _ in ACTIONS)


def act(program: Program, draw: Draw) -> None:
    """One action, drawn; none any more once a write was lost."""
    if program.lost:
        return
    at = draw(_TOTAL)
    for weight, action in ACTIONS:
        if at < weight:
            action(program, draw)
            return
        at -= weight


@dataclass
class Soaked:
    """What a soak did, and what is wrong with it."""

    seconds: float = 0.0
    #: caches that were made, used and shut down
    lives: int = 0
    rows: int = 0
    events: int = 0
    done: Counter[str] = field(default_factory=Counter)
    #: resident bytes after each life
    memory: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Copies that failed, and calls that were refused."""
        ordinary = ("step", "idle", "hit", "end", "materialize", "discard", "reset", "allowed")
        return sum(times for what, times in self.done.items() if what not in ordinary)

    @property
    def growth_bytes(self) -> int:
        """By how much the memory in use has grown from the second quarter to the last one."""
        quarter = len(self.memory) // 4
        if not quarter:
            return 0
        return int(median(self.memory[-quarter:]) - median(self.memory[quarter : 2 * quarter]))


def soak(seconds: float, *, seed: int = 0, progress: Callable[[Soaked], None] = lambda _: None) -> Soaked:
    """Run programs for this long; a finding ends it. Besides the short lives one cache lives as long as the soak."""
    soaked, choices, process = Soaked(), random.Random(seed), psutil.Process()
    threads, start = set(threading.enumerate()), time.monotonic()
    life = old = _Life(eager=False, name="the cache that lives all the time")
    try:
        while (now := time.monotonic() - start) < seconds:
            life = _Life(eager=bool(soaked.lives % 2), name=f"life {soaked.lives + 1}")
            life.live(choices.randrange, faults=True)
            life.end(soaked)
            old.live(choices.randrange, faults=False)
            gc.collect()
            soaked.memory.append(process.memory_info().rss)
            soaked.seconds = now
            progress(soaked)
        old.end(soaked)
    except Exception as error:  # whatever it is, it is what the soak found
        soaked.wrong.append(f"{life.name}, or the old one, seed {seed}: {type(error).__name__}: {error}")
    soaked.seconds = time.monotonic() - start
    if left := set(threading.enumerate()) - threads:
        soaked.wrong.append(f"threads are left: {sorted(thread.name for thread in left)}")
    if soaked.growth_bytes > SLACK_BYTES:
        soaked.wrong.append(f"memory has grown by {soaked.growth_bytes / 2**20:.0f} MiB")
    return soaked


class _Life:
    """One cache and its program, whose trace is replayed as it goes."""

    def __init__(self, *, eager: bool, name: str) -> None:
        self.name, self._program = name, Program(eager=eager)
        self._recording = Recording(name, self._program.trace, self._program.cache)

    def live(self, draw: Draw, *, faults: bool) -> None:
        """Some actions, and a look at the trace so far."""
        program = self._program
        for _ in range(LIFE):
            act(program, draw if faults else _harmless(draw))
        if not program.lost:
            program.settle()
            self._replay()

    def end(self, soaked: Soaked) -> None:
        """Shut it down: then nothing is held, and the whole trace was one of the protocol."""
        self._program.finish()
        self._replay(to_the_end=True)
        soaked.lives += 1
        soaked.rows += self._program.rows
        soaked.events += self._recording.taken
        soaked.done += self._program.done

    def _replay(self, *, to_the_end: bool = False) -> None:
        if (verdict := self._recording.advance(to_the_end=to_the_end)) is not None:
            raise AssertionError(str(verdict))
        self._recording.forget_taken()


def _harmless(draw: Draw) -> Draw:
    """Draws that never lose a write, after which a cache serves nothing."""
    return lambda n: draw(n if n != _TOTAL else _TOTAL - ACTIONS[-1][0])
