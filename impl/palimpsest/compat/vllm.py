"""vLLM's names of the host mirror and of the KV-cache utilities: an importer changes the module and nothing else."""

from palimpsest.host_mirror.index_group import SparseMLAIndexGroupBuilder
from palimpsest.host_mirror.runtime import (
    HiSparseCacheHandle,
    HiSparseHostPool,
    ResolvedHiSparseConfig,
    allocate_hisparse_host_pools,
    create_hisparse_cache_handle,
    use_shared_hisparse_host_pool,
)
from palimpsest.host_mirror.types import SparseKVPageTransfer, SparseKVRowMirror
from palimpsest.host_mirror.worker import HiSparseConnectorWorker
from palimpsest.kv_cache.copies import KVCacheBlockCopy
from palimpsest.kv_cache.memory import MemorySnapshot
from palimpsest.kv_cache.utils import (
    bind_kv_cache,
    bind_kv_cache_to_layers,
    copy_kv_cache_blocks_inplace,
    request_memory,
)

__all__ = [
    "HiSparseCacheHandle",
    "HiSparseConnectorWorker",
    "HiSparseHostPool",
    "KVCacheBlockCopy",
    "MemorySnapshot",
    "ResolvedHiSparseConfig",
    "SparseKVPageTransfer",
    "SparseKVRowMirror",
    "SparseMLAIndexGroupBuilder",
    "allocate_hisparse_host_pools",
    "bind_kv_cache",
    "bind_kv_cache_to_layers",
    "copy_kv_cache_blocks_inplace",
    "create_hisparse_cache_handle",
    "request_memory",
    "use_shared_hisparse_host_pool",
]
