"""The errors that this package raises, one family under `PalimpsestError`.

Each message names the thing, its value and the limit. Unless a class says otherwise, the call that
raises has changed nothing and the next call works.
"""

from __future__ import annotations


class PalimpsestError(Exception):
    """Any error of this package."""


class PrefixCacheError(PalimpsestError):
    """The prefix cache cannot do what was asked (upstream's `OmniPrefixCacheUnmatchError`)."""


class BadStepError(PrefixCacheError, ValueError):
    """A step's input does not fit: alignment, block ids, duplicates, shapes, token counts, capacity."""


class KeyLayoutError(PrefixCacheError, TypeError):
    """A per-token value has another dtype or trailing shape than its key has had so far."""


class StepConsumedError(PrefixCacheError, LookupError):
    """The step id is unknown, or its step was consumed already."""


class AbsentRowsError(PrefixCacheError, LookupError):
    """Hidden states of a planned hit were absent, so the prompt's prefix cannot be delivered."""


class StaleReadError(PrefixCacheError):
    """Rows of a planned read were reassigned and no preserved copy exists."""


class CorruptRowsError(PrefixCacheError):
    """Rows about to be delivered are not the ones that were saved (`row_checks`); the step is consumed."""


class WriteFailedError(PrefixCacheError, RuntimeError):
    """A write was lost after its step had published; the cache serves nothing from then on (fail-stop)."""


class WaitTimeoutError(PrefixCacheError, TimeoutError):
    """A bounded wait ran out; the message names who holds what."""


class StagingTimeoutError(WaitTimeoutError):
    """No staging page came free in time (upstream's `OmniPrefixCacheStagingTimeoutError`)."""


class BudgetExceededError(PrefixCacheError):
    """One step's deferred rows are larger than the whole byte budget."""


class HostMemoryError(PrefixCacheError, MemoryError):
    """The host (or its control group) has less memory than the configuration needs."""


class ShutdownError(PrefixCacheError):
    """The cache was shut down, or is shutting down, while the call was made or waited."""


class ConfigRefusedError(PrefixCacheError, ValueError):
    """The engine's configuration is one that this cache cannot serve correctly."""


class IllegalTransitionError(PrefixCacheError):
    """A life cycle was asked for a transition that its declaration does not have."""


class InvariantError(PalimpsestError, AssertionError):
    """`check_invariants` found something held, or two structures that disagree."""


class HostMirrorError(PalimpsestError):
    """The host mirror cannot do what was asked."""


class BadMirrorInputError(HostMirrorError, ValueError):
    """A configuration, a row mirror or a page transfer does not fit: shapes, ids, spans that overlap."""


class HostRegistrationError(HostMirrorError, RuntimeError):
    """The driver refused to page-lock host memory; nothing of the pool is left registered."""


class MirrorMemoryError(HostMirrorError, MemoryError):
    """The host (or its control group) has less memory than the pool needs."""


class IncompleteMirrorError(HostMirrorError, RuntimeError):
    """A step ended with rows of some layer not mirrored."""


class CopyFailedError(HostMirrorError, RuntimeError):
    """A queued copy failed; whoever waits for it or for a later one of its stream hears of it."""


class MirrorTimeoutError(HostMirrorError, TimeoutError):
    """A bounded wait of the mirror ran out; the message names what was waited for."""


class RankLostError(MirrorTimeoutError):
    """Another rank did not come to a barrier within the bound; it died, or it hangs."""
