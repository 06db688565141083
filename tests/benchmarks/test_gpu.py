"""The experiments on a GPU, as far as they can be tried without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.experiments.rivals import Jax
from feinsum.targets.opencl import OPENCL
from tests.benchmarks.test_experiments_entries import KINDS
from tests.docs.pages import ROOT, page

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
HAS_GPU = any(device.kind == "gpu" for device in OPENCL.devices())


def call(*arguments, **variables):
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env=os.environ | {"PYTHON": sys.executable} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU, and the experiments take hours")
def test_without_a_gpu_the_script_says_so_and_runs_nothing(tmp_path):
    """Exit code 3, the facts of every device that there is, no report."""
    result = call("opencl", OUT=str(tmp_path))
    assert result.returncode == 3, result.stderr
    assert "no GPU has an OpenCL driver here" in result.stderr
    for device in OPENCL.devices():
        assert f"{device.name} ({device.kind})" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["opencl.txt"]


def test_folders_must_be_there(tmp_path):
    """One that is not is bad usage, before anything is installed."""
    for mode, message in (
        ("opencl", "no folder of wheels"),
        ("cuda", "neither wheels, nor a contest, nor trials"),
        ("metal", "expected cuda or opencl, got 'metal'"),
    ):
        result = call(mode, str(tmp_path / "wheels"), OUT=str(tmp_path / "out"))
        assert result.returncode == 2
        assert message in result.stderr
        assert not list((tmp_path / "out").glob("*"))


@pytest.mark.skipif(find_spec("cupy") is not None, reason="there is CuPy")
def test_without_cupy_or_a_gpu_nothing_runs_with_cuda(tmp_path):
    """Exit code 3, one line."""
    result = call("cuda", OUT=str(tmp_path))
    assert result.returncode == 3
    assert result.stderr == "gpu.sh: CuPy finds no GPU here; nothing is run\n"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_the_script_has_no_findings():
    """By shellcheck, where it is installed."""
    subprocess.run(["shellcheck", str(SCRIPT)], check=True)


def test_every_variable_of_the_script_is_documented():
    """What stands in its head, and what the page says, are the same."""
    head = re.findall(r"^# ([A-Z_]+)  +\w", SCRIPT.read_text(), re.MULTILINE)
    variables = set(head) - {"FOLDER", "WHEELS", "OPTION"}
    text = page("docs/how-to/gpu.md")
    assert set(re.findall(r"^\| `([A-Z_]+)` ", text, re.MULTILINE)) == variables


@pytest.mark.skipif(find_spec("jax") is None, reason="of the extra bench")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("platforms", ["", "cpu"])
def test_jax_says_where_it_ran(monkeypatch, platforms):
    """On the CPU by default, else where the variable says."""
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    entry = KINDS[0]
    assert Jax().prepare(entry, entry.values()).note == "on cpu"
