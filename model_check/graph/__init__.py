"""TLC's graph of a small model against the in-process checker: `palimpsest check --graph`."""
