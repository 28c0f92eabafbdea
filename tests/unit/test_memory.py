"""Host memory: the machine's, the control groups', and what pinned buffers take."""

from __future__ import annotations

import ctypes
import gc
import mmap
from types import SimpleNamespace

import psutil
import pytest
import torch

from palimpsest.errors import HostRegistrationError
from palimpsest.memory import (
    allocate_host,
    available_host_bytes,
    can_pin,
    format_gib,
    lasting_bytes,
    pinned_bytes,
)
from palimpsest.page_locked import page_locked

GIB, PAGE = 1 << 30, mmap.PAGESIZE


@pytest.fixture
def machine(monkeypatch):
    """A machine with 8 GiB available."""
    fields = psutil.virtual_memory()._replace(available=8 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: fields)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def available(tmp_path, line):
    (tmp_path / "self").write_text(line)
    return available_host_bytes(tmp_path / "self", tmp_path / "cgroup")


def test_without_control_groups_the_machine_decides(machine, tmp_path):
    assert available_host_bytes(tmp_path / "none", tmp_path / "none") == 8 * GIB


def test_a_version_2_group_that_has_less_decides(machine, tmp_path):
    write(
        tmp_path / "cgroup/job",
        memory__max=3 * GIB,
        memory__current=GIB,
        memory__stat="anon 1\ninactive_file 0",
    )
    assert available(tmp_path, "0::/job\n") == 2 * GIB


def test_page_cache_that_can_be_reclaimed_counts_as_free(machine, tmp_path):
    stat = f"anon 5\ninactive_file {GIB // 2}"
    write(tmp_path / "cgroup/job", memory__max=3 * GIB, memory__current=GIB, memory__stat=stat)
    assert available(tmp_path, "0::/job\n") == 2 * GIB + GIB // 2


def test_a_group_above_that_has_less_decides(machine, tmp_path):
    write(tmp_path / "cgroup/outer", memory__max=2 * GIB, memory__current=GIB)
    write(tmp_path / "cgroup/outer/inner", memory__max="max", memory__current=GIB)
    assert available(tmp_path, "0::/outer/inner\n") == GIB


def test_a_container_sees_its_own_group_at_the_root(machine, tmp_path):
    write(tmp_path / "cgroup", memory__max=GIB, memory__current=0)
    assert available(tmp_path, "0::/not/mounted/here\n") == GIB


def test_a_version_1_group_that_has_less_decides(machine, tmp_path):
    write(
        tmp_path / "cgroup/memory/job",
        memory__limit_in_bytes=3 * GIB,
        memory__usage_in_bytes=2 * GIB,
        memory__stat=f"total_inactive_file {GIB}",
    )
    assert available(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/job\n") == 2 * GIB


def test_no_limit_and_a_larger_limit_leave_the_machine_to_decide(machine, tmp_path):
    write(tmp_path / "cgroup/job", memory__max="max", memory__current=GIB)
    assert available(tmp_path, "0::/job\n") == 8 * GIB
    write(tmp_path / "cgroup/job", memory__max=100 * GIB)
    assert available(tmp_path, "0::/job\n") == 8 * GIB


def test_a_group_over_its_limit_has_nothing_left(machine, tmp_path):
    write(tmp_path / "cgroup/job", memory__max=GIB, memory__current=2 * GIB)
    assert available(tmp_path, "0::/job\n") == 0


def test_this_machine_has_memory():
    assert 0 < available_host_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("nbytes", "physical"), [(0, 0), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192), (3 * GIB, 4 * GIB)]
)
def test_pinned_buffers_take_a_power_of_two(nbytes, physical):
    assert pinned_bytes(nbytes) == physical
    assert lasting_bytes(nbytes, pinned=False) == nbytes


@pytest.mark.parametrize(("nbytes", "locked"), [(1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE), (3 * GIB, 3 * GIB)])
def test_a_lasting_pinned_buffer_takes_its_own_pages_where_the_driver_can_lock_them(nbytes, locked, monkeypatch):
    monkeypatch.setattr("palimpsest.memory.can_register", lambda: True)
    assert lasting_bytes(nbytes, pinned=True) == locked
    assert lasting_bytes(nbytes, pinned=False) == nbytes


class Driver:
    """What `cudaHostRegister` is asked for; it refuses when told to."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.locked = code, {}

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802  # the driver's name
        if not self.code:
            self.locked[address] = nbytes
        return SimpleNamespace(value=self.code)

    def cudaHostUnregister(self, address):  # noqa: N802
        ctypes.string_at(address, 1)  # the memory is still mapped
        return SimpleNamespace(value=0 if self.locked.pop(address, None) else 1)


def test_locked_memory_is_unlocked_when_its_last_view_dies_and_before_it_is_unmapped(monkeypatch):
    driver = Driver()
    monkeypatch.setattr("palimpsest.page_locked._cudart", lambda: driver)
    rows = page_locked((3, 5), torch.bfloat16)
    assert rows.shape == (3, 5)
    assert list(driver.locked) == [rows.data_ptr()]
    assert rows.data_ptr() % PAGE == 0
    view = rows[1:]
    del rows
    gc.collect()
    assert driver.locked
    del view
    gc.collect()
    assert not driver.locked


def test_memory_that_the_driver_refuses_to_lock_is_given_back_and_said(monkeypatch):
    driver = Driver(code=2)
    monkeypatch.setattr("palimpsest.page_locked._cudart", lambda: driver)
    with pytest.raises(HostRegistrationError, match="code 2 for 12 bytes"):
        page_locked((3,), torch.float32)
    assert not driver.locked


def test_negative_sizes_are_errors():
    with pytest.raises(ValueError, match="nbytes is -1"):
        pinned_bytes(-1)


@pytest.mark.parametrize("pinned", [False, True])
def test_host_tensors_are_pinned_only_where_a_device_can_use_it(pinned):
    tensor = allocate_host((3, 2), torch.float16, pinned=pinned)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((3, 2), torch.float16, "cpu")
    assert tensor.is_pinned() == (pinned and can_pin())


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(3 * GIB // 2, "1.50 GiB"), (0, "0 GiB"), (4096, "3.8e-06 GiB"), (GIB // 8, "0.12 GiB")],
)
def test_sizes_are_told_in_gib(nbytes, text):
    assert format_gib(nbytes) == text
