"""The sparse reference runner: a small engine with top-k attention over a host mirror, which checks every row."""

from palimpsest.runners.sparse.requests import SparseRequest
from palimpsest.runners.sparse.runner import SparseReport, SparseRunner, SparseSettings

__all__ = ["SparseReport", "SparseRequest", "SparseRunner", "SparseSettings"]
