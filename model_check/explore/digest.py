"""A digest of structures, the same in each process: states of runs are compared by it."""

from __future__ import annotations

import hashlib
import marshal
from collections import deque
from typing import Any

import numpy as np


def digest(value: Any) -> bytes:
    """Eight bytes that tell structures of plain values, arrays and objects apart, the same in each process."""
    return hashlib.blake2b(marshal.dumps(_plain(value), 0), digest_size=8).digest()


_SCALARS = frozenset({int, str, bool, float, type(None), bytes})


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is np.ndarray:
        return value.tobytes()
    if kind is dict:
        return [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [item if type(item) in _SCALARS else _plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, np.generic):
        return value.item()
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())] or sorted(vars(value))
    return [_plain(getattr(value, name)) for name in names]
