"""Replay of traces in TLC: the code's events as steps of the specification itself."""

from .run import TlcVerdict, replay_in_tlc
from .windows import replayable, windows

__all__ = ["TlcVerdict", "replay_in_tlc", "replayable", "windows"]
