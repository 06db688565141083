"""Devices: selection, refusal, environments."""

from __future__ import annotations

import platform
from importlib.metadata import version

import loopy as lp
import pytest

from feinsum.errors import DeviceUnavailableError
from feinsum.measure import list_devices, open_device
from feinsum.options import DEVICE_VARIABLE
from feinsum.records import Environment, from_json, to_json
from feinsum.targets import devices
from feinsum.targets.host import HOST as HOST_TARGET
from feinsum.targets.host import HostCTarget
from feinsum.targets.host.compiler import COMPILER_VARIABLE, find_compiler
from tests.children import run_python
from tests.cpus import CPUS, HOST, any_opencl, opened


def run(statements, **variables):
    """What a new process prints, where the default device is not named."""
    variables = {DEVICE_VARIABLE: "", **variables}
    return run_python("-c", statements, **variables).stdout.strip()


NO_OPENCL = {"OCL_ICD_VENDORS": "/nowhere/none.icd"}
NO_COMPILER = {COMPILER_VARIABLE: "/nowhere/cc"}
DEFAULT = (
    "from feinsum.measure import open_device; print(open_device().device.platform)"
)
REFUSED = """
from feinsum.errors import DeviceUnavailableError
from feinsum.measure import open_device
try: open_device()
except DeviceUnavailableError as error: print(error)
"""


@pytest.mark.parametrize("cpu", CPUS)
def test_a_device_is_opened_once(cpu):
    """Opening it twice gives the same object."""
    assert opened(cpu) is open_device(cpu)


@pytest.mark.parametrize("part", ["platform", "name"])
def test_selector_is_a_part_of_a_name_in_any_case(part):
    """A part of the platform's or the device's name selects it, in any case."""
    device = open_device(HOST).device
    text = getattr(device, part)[1:].swapcase()
    assert part == "name" or open_device(text).device == device
    assert text.lower() in getattr(open_device(text).device, part).lower()


def test_selector_is_a_prefix_of_an_id():
    """The first characters of an id select the device."""
    device = list_devices()[-1]
    assert open_device(device.id[:16]).device == device


def test_selector_from_the_environment(monkeypatch):
    """FEINSUM_DEVICE is the default selector; an explicit one overrides it."""
    monkeypatch.setenv(DEVICE_VARIABLE, "no such device")
    with pytest.raises(DeviceUnavailableError, match="no such device"):
        open_device()
    assert open_device("").device == list_devices()[0]


UNLOADED = """
import os
from feinsum.targets.devices import open_device
from feinsum.targets.opencl import OPENCL

def load(self):
    raise SystemExit("drivers of OpenCL are loaded")

type(OPENCL).devices = load
print(open_device(os.environ["SELECTOR"]).device.platform)
"""


@pytest.mark.parametrize("selector", [" HOST ", ""])
def test_the_host_is_opened_without_a_driver(selector, monkeypatch):
    """By the name of its target, and by default: others take their time to load."""
    monkeypatch.delenv(DEVICE_VARIABLE)
    assert run(UNLOADED, SELECTOR=selector) == "Host C compiler"


def test_the_name_of_a_target_is_a_selector():
    """Of all its devices the first that works."""
    any_opencl()
    assert open_device("opencl").device.platform != "Host C compiler"


def test_mismatch_lists_the_devices():
    """The message of a mismatch names every device, and the variable."""
    with pytest.raises(DeviceUnavailableError) as caught:
        open_device("Cray-1")
    message = str(caught.value)
    assert "'Cray-1'" in message
    assert DEVICE_VARIABLE in message
    for device in list_devices():
        assert str(device) in message
        assert device.id[:12] in message


def test_the_default_is_the_host(monkeypatch):
    """With or without OpenCL."""
    monkeypatch.delenv(DEVICE_VARIABLE)
    assert open_device().device == HOST_TARGET.devices()[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Loopy's own target
def test_the_default_of_a_kernel_runs_it(monkeypatch):
    """A kernel of C is for the host, one for OpenCL for a device of OpenCL."""
    monkeypatch.delenv(DEVICE_VARIABLE)
    for target in (lp.CTarget(), lp.ExecutableCTarget(), HostCTarget()):
        assert open_device(loopy_target=target).device.platform == "Host C compiler"
    any_opencl()
    found = open_device(loopy_target=lp.PyOpenCLTarget()).device
    assert found.platform != "Host C compiler"


def test_a_kernel_that_no_target_runs_is_refused(monkeypatch):
    """By the name of its target."""
    monkeypatch.setattr(devices, "TARGETS", devices.TARGETS[:1])
    with pytest.raises(DeviceUnavailableError, match="CudaTarget"):
        open_device("", loopy_target=lp.CudaTarget())


def test_what_does_not_work_is_passed_over(monkeypatch):
    """The next device is taken; an only match is opened all the same."""
    others = [d for d in list_devices() if d.platform != "Host C compiler"]
    if not others:
        pytest.skip("there is no other device")
    host = open_device(HOST).device
    monkeypatch.setattr(
        devices, "find_trouble", lambda _, d: "it burns" if d == host else ""
    )
    assert open_device("").device == others[0]
    assert open_device(HOST).device == host
    monkeypatch.setattr(devices, "find_trouble", lambda _, __: "it burns")
    with pytest.raises(DeviceUnavailableError, match=r"it burns.*it burns"):
        open_device("")


def test_a_machine_without_any_device_is_one_clear_error():
    """It says what each target lacks, and what to install."""
    message = run(REFUSED, **NO_OPENCL, **NO_COMPILER)
    assert message.startswith("no device works here: ")
    for words in ("/nowhere/cc", "install gcc or clang", "feinsum[intel]"):
        assert words in message


def test_a_machine_without_pyopencl_has_the_host():
    """The package is imported, and computes, where pyopencl cannot be imported."""
    hidden = "import sys; sys.modules['pyopencl'] = None\n"
    assert run(hidden + DEFAULT) == "Host C compiler"
    message = run(hidden + REFUSED, **NO_COMPILER)
    assert "pyopencl cannot be imported" in message


def test_environment_of_the_host_names_compiler_and_flags():
    """Its version and its options are what a driver is elsewhere."""
    environment = open_device(HOST).environment({"rounds": 20})
    compiler = find_compiler()
    assert environment.driver_version == compiler.version
    assert environment.platform_version.endswith(" ".join(compiler.flags))
    assert set(environment.software) == {
        *("feinsum", "islpy", "loopy", "numpy", "python")
    }


def test_environment_of_opencl_is_verbatim():
    """Driver and platform versions are OpenCL's own text, versions are pip's."""
    opencl = any_opencl()
    handle = opencl.handle
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


@pytest.mark.parametrize("cpu", CPUS)
def test_environment_is_a_document(cpu):
    """An environment round-trips through JSON."""
    environment = opened(cpu).environment({"rounds": 20})
    assert from_json(Environment, to_json(environment)) == environment


def test_architecture_of_a_cpu_is_its_instruction_set():
    """A CPU's architecture is that of the machine."""
    for device in list_devices():
        if device.kind == "cpu":
            assert device.architecture == platform.machine()
