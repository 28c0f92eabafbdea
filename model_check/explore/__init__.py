"""Schedules of the real threads: the package's own code, run one thread at a time under a scheduler that chooses."""
