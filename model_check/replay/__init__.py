"""Replay of traces: each event of the code against the rules of the specification."""
