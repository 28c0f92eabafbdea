"""Runners that drive the prefix cache: the mixin for real ones, and two small engines that check what they get.

`PrefixCacheRunnerMixin` goes into a runner that has an engine's attributes (`docs/runners.md` has recipes);
`runners.reference` and `runners.sparse` are whole engines of this package.
"""

from palimpsest.prefix_cache.runner import PrefixCacheRunnerMixin, SavedStep

__all__ = ["PrefixCacheRunnerMixin", "SavedStep"]
