"""Devices: selection, refusal, environments."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version

import pytest

from feinsum.errors import DeviceUnavailableError
from feinsum.measure import list_devices, open_device
from feinsum.measure.device import DEVICE_VARIABLE
from feinsum.records import Environment, from_json, to_json


def run_without_devices(tmp_path, statements):
    """Run Python where the OpenCL loader finds no vendor."""
    nowhere = {"OCL_ICD_VENDORS": str(tmp_path / "none.icd")}
    return subprocess.run(
        [sys.executable, "-c", statements],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_context_per_device():
    """Opening a device twice gives the same context and queue."""
    assert open_device() is open_device()


@pytest.mark.parametrize("part", ["platform", "name"])
def test_selector_is_a_part_of_a_name_in_any_case(part, opencl):
    """A part of the platform's or the device's name selects it, in any case."""
    text = getattr(list_devices()[0], part)[3:].swapcase()
    assert open_device(text) is open_device(getattr(list_devices()[0], part))


def test_selector_is_a_prefix_of_an_id():
    """The first characters of an id select the device."""
    device = list_devices()[-1]
    assert open_device(device.id[:16]).device == device


def test_selector_from_the_environment(monkeypatch):
    """FEINSUM_DEVICE is the default selector; an explicit one goes first."""
    monkeypatch.setenv(DEVICE_VARIABLE, "no such device")
    with pytest.raises(DeviceUnavailableError, match="no such device"):
        open_device()
    assert open_device("").device == list_devices()[0]


def test_mismatch_lists_the_devices():
    """The message of a mismatch names every device, the variable, and the remedy."""
    with pytest.raises(DeviceUnavailableError) as caught:
        open_device("Cray-1")
    message = str(caught.value)
    assert "'Cray-1'" in message
    assert 'pip install "pyopencl[pocl]"' in message
    assert DEVICE_VARIABLE in message
    for device in list_devices():
        assert str(device) in message
        assert device.id[:12] in message


def test_machine_without_devices(tmp_path):
    """Without an OpenCL platform, listing is empty and opening says what to do."""
    listing = run_without_devices(
        tmp_path, "from feinsum.measure import list_devices; print(list_devices())"
    )
    assert listing.stdout.strip() == "()", listing.stderr
    opening = run_without_devices(
        tmp_path, "from feinsum.measure import open_device; open_device()"
    )
    assert opening.returncode != 0
    last = opening.stderr.strip().splitlines()[-1]
    assert "DeviceUnavailableError: no OpenCL device was found" in last
    assert 'pip install "pyopencl[pocl]"' in last


def test_machine_without_pyopencl():
    """The package imports without pyopencl; opening a device is what fails."""
    statements = (
        "import sys; sys.modules['pyopencl'] = None\n"
        "import feinsum.measure as m\n"
        "from feinsum.errors import DeviceUnavailableError\n"
        "try: m.open_device()\n"
        "except DeviceUnavailableError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", statements], capture_output=True, text=True, check=True
    )
    assert "pyopencl cannot be imported" in done.stdout
    assert 'pip install "pyopencl[pocl]"' in done.stdout


def test_environment_is_verbatim(opencl):
    """Driver and platform versions are OpenCL's own text, versions are pip's."""
    import pyopencl as cl

    handles = [d for entry in cl.get_platforms() for d in entry.get_devices()]
    handle = next(d for d in handles if d.name == opencl.device.name)
    environment = opencl.environment({"rounds": 20, "timer": "wall"})
    assert environment.driver_version == handle.driver_version
    assert environment.platform_version == handle.platform.version
    assert environment.device.name == handle.name
    assert environment.device.vendor == handle.vendor
    assert environment.software["loopy"] == version("loopy")
    assert environment.software["python"] == platform.python_version()
    assert set(environment.software) == {
        *("feinsum", "islpy", "loopy", "numpy", "pyopencl", "python")
    }
    assert environment.policy == {"rounds": 20, "timer": "wall"}


def test_environment_is_a_document(opencl):
    """An environment round-trips through JSON."""
    environment = opencl.environment({"rounds": 20})
    assert from_json(Environment, to_json(environment)) == environment


def test_architecture_of_a_cpu_is_its_instruction_set():
    """A CPU's architecture is that of the machine."""
    for device in list_devices():
        if device.kind == "cpu":
            assert device.architecture == platform.machine()
