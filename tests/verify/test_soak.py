"""The soak, for a short while; and that it can fail."""

from __future__ import annotations

import pytest

from palimpsest import cli
from palimpsest.prefix_cache.hits import HitReader
from palimpsest_model_check.programs import soak as soak_module
from palimpsest_model_check.programs.soak import Soaked, soak

pytestmark = pytest.mark.forges("the soak replays its own traces")


@pytest.mark.slow
def test_a_short_soak_leaves_nothing_behind():
    soaked = soak(15.0)
    assert soaked.wrong == []
    assert soaked.lives > 3
    assert soaked.rows > 1000
    assert soaked.faults > 20
    assert soaked.events > soaked.rows / 4
    assert len(soaked.memory) == soaked.lives - 1


def test_what_a_soak_finds_ends_it_and_is_told(monkeypatch, capsys):
    monkeypatch.setattr(HitReader, "drop_all", lambda self, reads: [])
    assert cli.main(["soak", "--seconds", "30"]) == 1
    assert "life 1" in capsys.readouterr().out


def test_memory_that_grows_is_found():
    grows = Soaked(memory=[100 << 20] * 40 + [(100 << 20) + (step << 20) for step in range(60)])
    assert grows.growth_bytes > soak_module.SLACK_BYTES
    assert Soaked(memory=[50 << 20] * 10 + [100 << 20] * 90).growth_bytes == 0


def test_a_thread_that_is_left_is_found(monkeypatch):
    import threading

    stop = threading.Event()
    stays = threading.Thread(target=stop.wait, name="stays")
    monkeypatch.setattr(soak_module._Life, "live", lambda self, draw, faults: stays.is_alive() or stays.start())
    monkeypatch.setattr(soak_module._Life, "end", lambda self, soaked: self._program.close())
    soaked = soak(0.3)
    stop.set()
    assert soaked.wrong == ["threads are left: ['stays']"]


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "long"])
def test_a_time_that_is_none_is_refused(seconds, capsys):
    with pytest.raises(SystemExit):
        cli.main(["soak", "--seconds", seconds])
    assert "not a positive number of seconds" in capsys.readouterr().err
