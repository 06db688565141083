"""What ``feinsum doctor`` sees of the machine, and of what is set up on it."""

import os
import stat

import pytest

from feinsum.doctor import machine
from feinsum.records import Device
from feinsum.records.environment import CUDA_PLATFORM
from feinsum.targets.devices import DeviceState
from tests.docs.codes import settings

OURS = "FEINSUM_"


def test_all_variables_are_known():
    """The table has the variables that the code names, and no other."""
    named = {name for name in settings() if not name.startswith(f"{OURS}SERVE_")}
    assert named == machine.VARIABLES


SERVICE = (f"{OURS}SERVE_PORT", f"{OURS}SERVE_WORKERS")


@pytest.mark.parametrize(
    ("name", "of_service", "nearest"),
    [
        ("POLCY", (), "POLICY"),
        ("SERVE_PROT", SERVICE, "SERVE_PORT"),
        *((name, SERVICE, None) for name in ("XYZ", "SERVE_X", "PROGRESS", "CACHE")),
        *((name, (), None) for name in ("TRACE", "VERBOSE")),
    ],
)
def test_a_misspelt_variable_is_told_with_the_nearest_name(name, of_service, nearest):
    """Without any effect it would go unnoticed. What all names begin with, the prefix
    of the service as well, makes no two of them similar.
    """
    given = dict.fromkeys([f"{OURS}{name}", f"{OURS}DEVICE", "PATH", *of_service], "")
    (found,) = machine.check_variables(given, of_service)
    assert found.state == "note"
    assert f"{OURS}{name}" in found.text
    assert ("did you mean" in found.text) == (nearest is not None)
    if nearest:
        assert found.advice == f"rename it to {OURS}{nearest}"


def test_variables_of_a_service_that_is_not_installed_are_not_checked():
    """Nobody knows their names there."""
    assert [*machine.check_variables({f"{OURS}SERVE_PROT": ""})] == []


def test_a_plug_in_that_cannot_be_loaded_is_a_problem(monkeypatch, tmp_path):
    """The error that importing it raises is told; one that loads is well."""
    (tmp_path / "broken_plugin.py").write_text("1/0\n")
    (tmp_path / "good_plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = "broken_plugin, good_plugin, missing_plugin"
    monkeypatch.setenv(machine.VARIABLE, names)
    broken, good, missing = machine.check_plugins()
    assert broken.state == missing.state == "problem"
    assert "ZeroDivisionError" in broken.text
    assert good.state == "ok"
    assert "missing_plugin" in missing.text


def test_an_old_compiler_is_told(monkeypatch, tmp_path):
    """By what it says of itself: the first line of its version."""
    for line, state in (
        ("gcc (GCC) 4.8.5", "note"),
        ("gcc (Debian 12.2.0) 12.2.0", "ok"),
        ("Debian clang version 14.0.6", "ok"),
        ("clang version 3.4.2", "note"),
    ):
        compiler = tmp_path / line.replace(" ", "-")  # a version is asked for once
        compiler.write_text(
            "#!/bin/sh\n"
            f"case $1 in --version) echo '{line}';; *) exec gcc \"$@\";; esac\n"
        )
        compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("FEINSUM_CC", f"'{compiler}'")
        (found,) = machine.check_compiler()
        assert (found.state, line in found.text) == (state, True)


def test_a_busy_and_a_throttled_machine_are_told(tmp_path):
    """By the load, and by what the group of processes was held back."""
    statistics = tmp_path / "cpu.stat"
    cores = len(os.sched_getaffinity(0))
    (idle,) = machine.check_machine(0.0, statistics)
    assert idle.state == "ok"
    statistics.write_text("usage_usec 5\nnr_periods 100\nnr_throttled 40\n")
    busy, held = machine.check_machine(2.0 * cores, statistics)
    assert "noisy" in busy.text
    assert "40 of 100 periods" in held.text
    assert {busy.state, held.state} == {"note"}


@pytest.mark.parametrize(
    ("platform", "loaded", "states"),
    [
        ("host C", None, []),
        (CUDA_PLATFORM, None, ["note"]),
        (CUDA_PLATFORM, (None, "2.3.1"), ["ok"]),
    ],
)
def test_cutensor_is_reported_where_there_is_a_gpu(
    monkeypatch, platform, loaded, states
):
    """With its version, or with what installs it."""
    monkeypatch.setattr(machine, "load_cutensor", lambda: loaded)
    device = Device(platform, "G", "NVIDIA", "gpu", "sm_90", 132)
    found = [*machine.check_cutensor([DeviceState("cuda", device, "")])]
    assert [one.state for one in found] == states
    assert all("2.3.1" in one.text or "cutensor-cu12" in one.advice for one in found)


def test_a_kernel_for_older_vectors_is_told():
    """OpenBLAS chooses by the processor, and older releases do not know all."""
    for kernel, features, state in (
        ("Prescott", ("avx2",), "note"),
        ("Haswell", ("avx2",), "ok"),
        ("SkylakeX", ("avx2",), "ok"),
        ("Haswell", ("avx2", "avx512f"), "note"),
        ("SkylakeX", ("avx2", "avx512f"), "ok"),
        ("ARMV8", (), "ok"),
    ):
        (found,) = machine.check_openblas(kernel, features)
        assert found.state == state
