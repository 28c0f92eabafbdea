"""Palimpsest: a cache over reused memory whose protocol is specified, checked and replayed."""

__version__ = "0.1.0"
