"""What the commands share: their parsers, kinds of numbers, the console, and how they are ended."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: of the tables where no terminal has a width
LOG_WIDTH = 140


def command_parser(subparsers: Any, name: str, says: str, description: str) -> argparse.ArgumentParser:
    """The parser of a command; its description is shown as it is written."""
    shown = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=says, description=description, formatter_class=shown
    )
    return parser


def make_console() -> Console:
    """A console as wide as the terminal, or as a log."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH)


def positive(text: str) -> int:
    """An option's whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def count(text: str) -> int:
    """An option's whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return int(text)


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM is an interrupt like that of a keyboard, so that no JVM outlives the command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
