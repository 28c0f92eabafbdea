"""The host mirror: KV rows of sparse attention in a pinned host pool that the local ranks share."""

from palimpsest.host_mirror.batch import HostMirrorConfig, LayerSpec, MirrorBatch
from palimpsest.host_mirror.mirror import HostMirror
from palimpsest.host_mirror.types import (
    PageResidency,
    SparseKVPageTransfer,
    SparseKVRowMirror,
    StepCommand,
    StepMetadata,
)

__all__ = [
    "HostMirror",
    "HostMirrorConfig",
    "LayerSpec",
    "MirrorBatch",
    "PageResidency",
    "SparseKVPageTransfer",
    "SparseKVRowMirror",
    "StepCommand",
    "StepMetadata",
]
