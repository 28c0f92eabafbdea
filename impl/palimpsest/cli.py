"""The `palimpsest` command: finds the sub-command's module, and runs it."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any, Protocol, cast

from palimpsest import __version__, commands


class Command(Protocol):
    """What a module of `palimpsest.commands` has."""

    def add_parser(self, subparsers: Any) -> None:
        """Add the command's own parser, under the module's name."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; gives the exit status."""


def command_names() -> list[str]:
    """The sub-commands there are, found without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__) if module.name[0] != "_")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives its exit status. Usage errors exit with status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments).parse_args(arguments)
    return _load(args.command).run(args)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="palimpsest", description="A prefix cache, its specification and checks.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names = command_names()
    for name in [arguments[0]] if arguments and arguments[0] in names else names:
        _load(name).add_parser(subparsers)
    return parser


def _load(name: str) -> Command:
    return cast(Command, importlib.import_module(f"{commands.__name__}.{name}"))


if __name__ == "__main__":
    sys.exit(main())
