"""The sub-commands of `palimpsest`: one module each, with `add_parser(subparsers)` and `run(args) -> int`.

A module is imported only when its command is asked for, or the help that lists them all.
"""
