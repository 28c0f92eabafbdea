"""Traces, counterexamples and schedules as pictures: a lane per thread, and a strip per slot, page and task."""
