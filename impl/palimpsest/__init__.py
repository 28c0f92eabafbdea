"""Palimpsest: a prefix cache and host mirror whose concurrency protocol is specified and replayed."""

__version__ = "0.1.0"
