"""What an operator may set of a prefix cache, from the environment or the engine's configuration.

The blocks and their size are the engine's, the keys' layouts the model's; everything else of `PrefixCacheConfig` can be
set. The environment overrides the engine's configuration, which overrides the defaults. A value that does not parse
and a field that nobody knows are refused, each by its name and where it was found.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from palimpsest.errors import ConfigRefusedError
from palimpsest.prefix_cache.interface import PrefixCacheConfig, RowChecks

ENV_PREFIX = "PALIMPSEST_CACHE_"

#: the key of vLLM's `additional_config` whose value is a mapping of these fields
ENGINE_KEY = "palimpsest"

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class Setting(NamedTuple):
    """One field: how a value given as text becomes its own, what to write, and what it is for."""

    parse: Callable[[Any], Any]
    form: str
    does: str


def read_settings(engine: Any = None, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The fields of `PrefixCacheConfig` that the engine's `additional_config["palimpsest"]` or the environment sets,
    by name, with the environment's value where both do.

    `engine` has vLLM's attribute `additional_config` (a mapping, or None), or lacks it. Raises `ConfigRefusedError`.
    """
    return {**from_engine(engine), **from_environment(environ)}


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The fields set by variables named `PALIMPSEST_CACHE_` and the field in capitals."""
    names = {name: name.removeprefix(ENV_PREFIX).lower() for name in environ if name.startswith(ENV_PREFIX)}
    return {field: _value(field, environ[name], f"the environment's {name}") for name, field in names.items()}


def from_engine(engine: Any) -> dict[str, Any]:
    """The fields set in vLLM's `additional_config["palimpsest"]`."""
    additional = getattr(engine, "additional_config", None)
    fields = additional.get(ENGINE_KEY, {}) if isinstance(additional, Mapping) else {}
    return from_mapping(fields, f"additional_config[{ENGINE_KEY!r}]")


def from_mapping(fields: Any, source: str) -> dict[str, Any]:
    """The fields set by a mapping; `source` says in errors where it was found."""
    if not isinstance(fields, Mapping):
        raise ConfigRefusedError(f"{source} is {fields!r}, and must be a mapping of fields")
    return {str(field): _value(str(field), value, f"{source}: {field}") for field, value in fields.items()}


def _value(field: str, value: Any, where: str) -> Any:
    setting = SETTINGS.get(field)
    if setting is None:
        near = difflib.get_close_matches(field, SETTINGS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigRefusedError(f"{where}: there is no field {field!r}{hint}; fields are {', '.join(SETTINGS)}")
    try:
        return setting.parse(value)
    except (ValueError, TypeError):
        raise ConfigRefusedError(f"{where} is {value!r}, and {field} must be {setting.form}") from None


def _number(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(value)


def _bytes(value: Any) -> int:
    """A number of bytes; text may end in KiB, MiB or GiB."""
    if not isinstance(value, str):
        return _number(value)
    found = re.fullmatch(r"\s*(\d+)\s*([KMG]iB|)\s*", value, re.IGNORECASE)
    if found is None:
        raise ValueError(value)
    return int(found[1]) * _UNITS[found[2].upper()]


def _seconds(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _folder(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(value)
    return os.fspath(value)


_COUNT, _SECONDS = "an integer of at least 1", "a number of seconds"

SETTINGS: dict[str, Setting] = {
    "staging_depth": Setting(_number, _COUNT, "Steps that may be saved and not yet consumed: the staging pages."),
    "staging_capacity_tokens": Setting(_number, _COUNT, "Tokens of the largest step: the rows of a staging page."),
    "staging_claim_timeout_s": Setting(_seconds, _SECONDS, "The bound of every wait; then the call raises."),
    "gpu_staging_bytes": Setting(
        _bytes,
        "a number of bytes (KiB, MiB, GiB)",
        "The clones of deferred keys that may exist at a time. One step's must fit.",
    ),
    "slow_wait_s": Setting(_seconds, _SECONDS, "A wait that lasts longer is warned of, with who holds what; 0: never."),
    "row_checks": Setting(
        lambda value: value if isinstance(value, RowChecks) else RowChecks(value),
        f"one of {', '.join(each.value for each in RowChecks)}",
        "What is checked of delivered rows.",
    ),
    "flight_recorder_events": Setting(
        _number, "an integer of at least 0", "Events that the flight recorder keeps in memory; 0 for none."
    ),
    "flight_recorder_dir": Setting(_folder, "a folder", "Where the flight recorder writes when the cache raises."),
}


def as_table() -> str:
    """The settings as a Markdown table, for the docs."""
    lines = ["| field | default | value | what it is for |", "| --- | --- | --- | --- |"]
    for name, setting in SETTINGS.items():
        default = PrefixCacheConfig.__dataclass_fields__[name].default
        shown = default.value if isinstance(default, RowChecks) else default
        lines.append(f"| `{name}` | `{shown}` | {setting.form} | {setting.does} |")
    return "\n".join(lines) + "\n"
