"""What a machine has, and what is said where torch cannot use it. The driver's library is a made-up one with three devices."""

import os
import warnings

import pytest
import torch

from roll.core.configs.problems import ConfigError
from roll.core.distributed import machine
from roll.core.distributed.devices import detect
from roll.core.distributed.machine import this_machine
from roll.platform.process_setup import set_defaults

MIB = 1 << 20
UUIDS = ("GPU-aa11", "GPU-bb22", "GPU-cc33")
SIZES = (1024 * MIB, 2048 * MIB, None)
"""The last device has no memory of its own."""
PART = "MIG-dd44"


class Driver:
    """As ctypes shows the library: status codes, and results in what is passed by reference. A handle is index + 1."""

    def __init__(self, status=0):
        self._status = status

    def nvmlInit_v2(self):
        return self._status

    def nvmlShutdown(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(UUIDS)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        handle._obj.value = 1
        return 0 if uuid.decode() == PART else 2

    def nvmlDeviceGetUUID(self, handle, text, length):
        text.value = UUIDS[handle.value - 1].encode()[: length.value]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        size = SIZES[handle.value - 1]
        memory._obj.total = size or 0
        return 0 if size else 3


@pytest.fixture
def driver(monkeypatch):
    def install(status=0):
        monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: Driver(status))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return monkeypatch

    return install


def test_visible_accelerators_are_counted(driver):
    environment, memory = driver(), this_machine().memory
    assert this_machine().accelerators == (1024 * MIB, 2048 * MIB, memory), "one without memory of its own has the machine's"
    answers = {
        "1": (2048 * MIB,),
        "2,0": (memory, 1024 * MIB),
        "GPU-bb": (2048 * MIB,),
        PART: (1024 * MIB,),
        "": (),
        "-1": (),
        "7": (),
        "MIG-none": (),
    }
    for visible, expected in answers.items():
        environment.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert this_machine().accelerators == expected, visible


def test_a_machine_without_a_driver_or_with_one_that_does_not_start_has_none(driver, monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    driver(status=9)
    assert this_machine().accelerators == ()
    monkeypatch.setattr(machine.ctypes, "CDLL", missing)
    found = this_machine()
    assert found.accelerators == () and found.cpus >= 1 and found.memory > 256 * MIB


def test_accelerators_that_torch_cannot_use_are_an_error_and_not_a_run_on_cpus(driver, monkeypatch):
    environment = driver()
    with pytest.raises(ConfigError) as refused:
        detect()
    assert "can use none of the 3 accelerators of this machine: it is built without CUDA" in str(refused.value)
    assert f"torch = {torch.__version__!r}" in str(refused.value) and "CUDA_VISIBLE_DEVICES= to run on CPUs" in str(refused.value)

    def old_driver():
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=1)
        return False

    environment.setattr(torch.version, "cuda", "13.0")
    environment.setattr(torch.cuda, "is_available", old_driver)
    environment.setattr(torch.cuda, "device_count", lambda: 3)  # torch counts by the driver's library, too
    with pytest.raises(ConfigError, match="driver on your system is too old"):
        detect()
    environment.setattr(torch.cuda, "is_available", lambda: True)
    assert (detect(2).kind, detect(2).count) == ("cuda", 6)
    environment.setenv("CUDA_VISIBLE_DEVICES", "")
    environment.setattr(torch.cuda, "is_available", lambda: False)
    assert detect().kind == "cpu", "that is what was asked for"


@pytest.mark.parametrize(("status", "expected"), [(0, None), (9, "cpu")])
def test_deepspeed_is_told_of_cpus_where_there_is_nothing_else(driver, status, expected):
    environment = driver(status)
    environment.setenv("PATH", "/nowhere")  # no program is asked
    environment.setenv("DS_ACCELERATOR", "to be restored")
    environment.delenv("DS_ACCELERATOR")
    set_defaults(this_machine())
    assert os.environ.get("DS_ACCELERATOR") == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile\n", "AMX"),
        ("flags\t\t: fpu avx512f avx512_bf16\n", "AVX512-BF16"),
        ("Features\t: fp asimd bf16 i8mm\n", "BF16"),
        ("flags\t\t: fpu avx2\n", ""),
        ("processor\t: 0\n", None),
    ],
)
def test_what_the_processors_multiply_bfloat16_by(text, found, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PROCESSORS", tmp_path / "cpuinfo")
    assert machine.bf16_instructions() is None
    (tmp_path / "cpuinfo").write_text(text)
    assert machine.bf16_instructions() == found
