"""Settings: from the environment, the engine's configuration or a dataclass, refused by the name of the field."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from palimpsest.errors import ConfigRefusedError
from palimpsest.prefix_cache.interface import PrefixCacheConfig, RowChecks
from palimpsest.prefix_cache.settings import ENV_PREFIX, SETTINGS, from_environment, read_settings

#: what the engine or the model tells
GIVEN = {"num_blocks", "block_size", "layouts"}


def engine(**fields):
    return SimpleNamespace(additional_config={"palimpsest": fields, "another_plugin": {"x": 1}})


def test_every_field_that_is_not_the_engines_can_be_set():
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(PrefixCacheConfig)} - GIVEN


def test_the_environment_overrides_the_engine_which_overrides_the_default():
    environ = {"PALIMPSEST_CACHE_STAGING_DEPTH": "7", "PALIMPSEST_CACHE_GPU_STAGING_BYTES": "2 GiB", "HOME": "/"}
    settings = read_settings(engine(staging_depth=5, row_checks="digest", slow_wait_s=2), environ)
    config = PrefixCacheConfig(4, 4, **settings)
    assert (config.staging_depth, config.gpu_staging_bytes) == (7, 2 << 30)
    assert (config.row_checks, config.slow_wait_s) == (RowChecks.DIGEST, 2.0)
    assert config.staging_claim_timeout_s == PrefixCacheConfig(4, 4).staging_claim_timeout_s


@pytest.mark.parametrize("config", [SimpleNamespace(), SimpleNamespace(additional_config=None), None])
def test_an_engine_that_says_nothing_sets_nothing(config):
    assert read_settings(config, {}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("staging_depth", "many"),
        ("staging_depth", 1.5),
        ("staging_depth", True),
        ("gpu_staging_bytes", "12 parsecs"),
        ("row_checks", "sometimes"),
        ("slow_wait_s", "soon"),
        ("flight_recorder_dir", 3),
    ],
)
def test_a_value_that_does_not_parse_is_refused_by_the_name_of_its_field(name, value):
    with pytest.raises(ConfigRefusedError, match=rf"additional_config\['palimpsest'\]: {name} is .*must be"):
        read_settings(engine(**{name: value}), {})


@pytest.mark.parametrize(
    ("name", "value"),
    [("staging_depth", 0), ("slow_wait_s", -1.0), ("flight_recorder_events", -1), ("staging_claim_timeout_s", "5")],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(name, value):
    with pytest.raises(ConfigRefusedError, match=name):
        PrefixCacheConfig(4, 4, **{name: value})


def test_a_check_that_is_none_is_refused():
    with pytest.raises(ConfigRefusedError, match="row_checks"):
        PrefixCacheConfig(4, 4, row_checks="digest")


def test_an_unknown_field_is_refused_with_the_one_that_is_near():
    with pytest.raises(ConfigRefusedError, match=r"no field 'staging_dept' \(did you mean staging_depth\?\)"):
        read_settings(engine(staging_dept=3), {})
    with pytest.raises(ConfigRefusedError, match="environment's PALIMPSEST_CACHE_COLOR: there is no field 'color'"):
        from_environment({ENV_PREFIX + "COLOR": "red"})


def test_settings_that_are_no_mapping_are_refused():
    with pytest.raises(ConfigRefusedError, match="must be a mapping"):
        read_settings(SimpleNamespace(additional_config={"palimpsest": ["staging_depth"]}), {})
