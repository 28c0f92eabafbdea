"""The KV cache of a runner: binding tensors to layers, copying blocks in place, asking for device memory."""

from palimpsest.kv_cache.copies import KVCacheBlockCopy, copy_kv_cache_blocks_inplace
from palimpsest.kv_cache.memory import MemorySnapshot, request_memory

__all__ = ["KVCacheBlockCopy", "MemorySnapshot", "copy_kv_cache_blocks_inplace", "request_memory"]
