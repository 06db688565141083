"""Intel's runtime: it is found where it is installed, and disturbs nothing."""

from __future__ import annotations

import json
import os
import sys
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from feinsum.measure import compile_kernel, list_devices, open_device
from feinsum.processes import Worker
from feinsum.records import MatchLevel, get_match_level
from feinsum.targets.opencl import door
from feinsum.targets.opencl.door import load_pyopencl, silence_builds
from tests.children import run_python
from tests.cpus import HOST, OPENCL_CPUS, any_opencl, needs_intel, opened
from tests.measure.conftest import matvec_kernel
from tests.strategies import make_record

LISTING = """
from feinsum.targets.opencl import OPENCL
for device in OPENCL.devices():
    print(device.platform)
"""


class Loader:
    """The module pyopencl, as far as lists of drivers are concerned."""

    Error = RuntimeError

    def __init__(self, folder: Path):
        self.__file__ = str(folder / "__init__.py")
        self.lists: list[dict[str, str]] = []
        (folder / ".libs").mkdir()

    def get_platforms(self) -> list[None]:
        there = Path(os.environ[door.VARIABLE])
        self.lists.append({path.name: path.read_text() for path in there.iterdir()})
        return []


@pytest.fixture
def loader(tmp_path, monkeypatch):
    """A loader, a driver at /there/libintelocl.so, and a system without drivers."""
    for variable in (door.VARIABLE, door.OTHER_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(
        door, "find_intel_driver", lambda: Path("/there/libintelocl.so")
    )
    monkeypatch.setattr(door, "SYSTEM_LISTS", tmp_path / "vendors")
    (tmp_path / "vendors").mkdir()
    return Loader(tmp_path)


def run(statements, **variables):
    """The lines that a new process prints."""
    return run_python("-c", statements, **variables).stdout.splitlines()


def test_the_loader_reads_the_lists_of_the_system_and_the_driver(loader):
    """It is asked once, with one more list, and the variable is unset again."""
    (door.SYSTEM_LISTS / "other.icd").write_text("libother.so")
    door.load_platforms(loader)
    assert loader.lists == [
        {"other.icd": "libother.so", "feinsum-intel.icd": "/there/libintelocl.so"}
    ]
    assert door.VARIABLE not in os.environ


def name_a_folder(variable):
    return lambda monkeypatch, _: monkeypatch.setenv(variable, "/mine")


def know_the_driver(*_):
    (door.SYSTEM_LISTS / "theirs.icd").write_text("/opt/lib/libintelocl.so\n")


UNNEEDED = {
    "the user names a folder of lists": name_a_folder(door.VARIABLE),
    "the user names it in another variable": name_a_folder(door.OTHER_VARIABLE),
    "the system knows the driver": know_the_driver,
    "the package is not there": lambda m, _: m.setattr(
        door, "find_intel_driver", lambda: None
    ),
    "pyopencl brings no loader, as in conda": lambda _, path: (path / ".libs").rmdir(),
}


@pytest.mark.parametrize("why", UNNEEDED)
def test_nothing_is_added_where_it_is_not_needed(why, loader, monkeypatch, tmp_path):
    """The loader is left alone, and variables of the user stay; without the package no
    platform comes last.
    """
    UNNEEDED[why](monkeypatch, tmp_path)
    before = dict(os.environ)
    door.load_platforms(loader)
    assert not loader.lists
    assert before == os.environ
    platform = SimpleNamespace(name=door.PLATFORM)
    assert door.is_intel_platform(platform) == (door.find_intel_driver() is not None)


def test_a_system_without_any_platform_is_no_error(loader, monkeypatch):
    """What the loader says against it is said when devices are listed."""

    def refuse():
        raise loader.Error("PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(loader, "get_platforms", refuse)
    door.load_platforms(loader)
    assert door.VARIABLE not in os.environ


@needs_intel
def test_the_package_is_seen_and_comes_last():
    """Whatever else is installed comes first, as without the package."""
    assert run(LISTING)[-1] == door.PLATFORM


@needs_intel
def test_a_loader_that_was_asked_before_keeps_what_it_has():
    """Intel's runtime is not seen then; nothing breaks."""
    asked = "import pyopencl; pyopencl.get_platforms()"
    assert (
        run(f"try:\n    {asked}\nexcept Exception: pass\n{LISTING}")
        == (run(LISTING)[:-1])
    )


def test_facts_of_one_device_are_not_exact_for_another():
    """One CPU under two targets, or two runtimes, is devices of one architecture."""
    devices = [open_device(HOST), any_opencl()]
    for there, here in permutations(device.environment({}) for device in devices):
        assert there.device.id != here.device.id
        fact = make_record(environment=there)
        assert get_match_level(fact, here) == MatchLevel.SAME_ARCHITECTURE
        assert get_match_level(fact, there) == MatchLevel.EXACT


@pytest.mark.parametrize("cpu", OPENCL_CPUS)
def test_each_runtime_runs_kernels(cpu):
    """A kernel is built, and computes what it should, on each that works here."""
    device = opened(cpu)
    assert device.device in list_devices()
    D, u = np.eye(4) * 2, np.ones((100, 4))
    bound = compile_kernel(matvec_kernel(), device).bind({"D": D, "u": u, "N": 100})
    bound.run()
    assert np.array_equal(bound.read()["y"], 2 * u)


@pytest.mark.parametrize("cpu", OPENCL_CPUS)
def test_a_home_that_cannot_be_written_costs_the_cache_alone(cpu, tmp_path):
    """Kernels are built and run, without a warning, and the device works."""
    device = opened(cpu).device
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    homes = {"HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    environment = os.environ | homes | {"FEINSUM_CACHE_DIR": "off"}
    # a warning is an error in the child, too
    command = (sys.executable, "-W", "error", "-m", "feinsum.targets.devices")
    with Worker(command, env=environment) as worker:
        assert json.loads(worker.request(device.id, limit_s=120.0)) == ""


@pytest.mark.parametrize("cpu", OPENCL_CPUS)
def test_the_true_error_of_a_build_is_raised(cpu):
    """Not what pyopencl's cache of programs makes of it."""
    device = opened(cpu)
    cl = load_pyopencl()
    program = cl.Program(device.context, "kernel void f(global int *a) { a[0] = 1; }")
    with silence_builds(), pytest.raises(cl.Error):
        program.build(options=["-no-such-option"])
