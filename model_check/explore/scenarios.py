"""All scenarios by name: the host mirror's, the prefix cache's, and those of what goes wrong there."""

from __future__ import annotations

from .cache_scenarios import CACHE_SCENARIOS
from .fault_scenarios import FAULT_SCENARIOS
from .mirror_scenarios import MIRROR_SCENARIOS
from .scenario import Registry

SCENARIOS = Registry({**MIRROR_SCENARIOS, **CACHE_SCENARIOS, **FAULT_SCENARIOS})
assert len(SCENARIOS) == len(MIRROR_SCENARIOS) + len(CACHE_SCENARIOS) + len(FAULT_SCENARIOS), "a name stands twice"
