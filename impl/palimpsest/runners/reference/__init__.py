"""The reference runner: a small real engine that checks every output of its prefix cache."""

from palimpsest.runners.reference.engine import ReferenceRunner, RunnerSettings
from palimpsest.runners.reference.report import Report
from palimpsest.runners.reference.requests import Request

__all__ = ["ReferenceRunner", "Report", "Request", "RunnerSettings"]
