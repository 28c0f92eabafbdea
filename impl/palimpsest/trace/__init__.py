"""Trace events of the protocol and where they go."""

from palimpsest.trace.events import SCHEMA_VERSION, Event
from palimpsest.trace.recorder import FlightRecorder
from palimpsest.trace.sinks import MemorySink, NdjsonSink, Sink

__all__ = ["SCHEMA_VERSION", "Event", "FlightRecorder", "MemorySink", "NdjsonSink", "Sink"]
