"""The experiments on a GPU, as far as they can be tried without one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from feinsum.targets.opencl import OPENCL
from tests.children import run_command
from tests.docs.pages import ROOT, page

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
FAKE = ROOT / "tests" / "targets" / "cuda" / "fake_cupy"
HAS_GPU = any(device.kind == "gpu" for device in OPENCL.devices())


def call(*arguments, **variables):
    variables = {"PYTHON": sys.executable} | variables
    return run_command(SCRIPT, *arguments, is_checked=False, **variables)


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
    """One that is not is bad usage."""
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
    """Exit code 3, one line with the reason."""
    result = call("cuda", OUT=str(tmp_path))
    assert result.returncode == 3
    assert result.stderr == (
        "gpu.sh: CuPy finds no GPU here; nothing is run "
        "(ModuleNotFoundError: No module named 'cupy')\n"
    )


RECORDER = """#!/bin/sh
case "$*" in
*"import cutensor"*) exit ${HAS_NO_CUTENSOR:-0} ;;
*"import cupy"*) exit 0 ;;
*"import benchmarks.gpu.everyday"*)
    echo "import feinsum" >> "$RECORD"
    [ -z "$HAS_NO_FEINSUM" ] || { echo "No module named 'loopy'" >&2; exit 1; }
    exit 0 ;;
esac
echo "${CUPY_ACCELERATORS:-none} $*" >> "$RECORD"
case "$*" in *broken*) exit 2 ;; esac
"""
"""In the place of Python: it records its arguments, and finds what variables say."""


@pytest.fixture
def recorded(tmp_path):
    """Runs the script for the folders of some scripts; the result, and what ran."""
    python, record = tmp_path / "python", tmp_path / "record"
    python.write_text(RECORDER)
    python.chmod(0o755)

    def run(*scripts, mode="cuda", **variables):
        record.write_text("")
        folders = []
        for script in scripts:
            (tmp_path / script).parent.mkdir(exist_ok=True)
            (tmp_path / script).touch()
            folders.append(str((tmp_path / script).parent))
        given = {"PYTHON": str(python), "RECORD": str(record), "OUT": str(tmp_path),
                 "CUPY_ACCELERATORS": "", **variables}  # fmt: skip
        result = call(mode, *folders, **given)
        return result, record.read_text().splitlines()

    return run


def budget_of(ran, what):
    """The seconds that were given to what ran, of which the script itself took few."""
    (line,) = (line for line in ran if what in line)
    return int(line.rpartition(" --budget ")[2])


def test_folders_and_calls_share_the_budget(recorded):
    """Folders leave their seconds to the calls, and all do to the report."""
    result, ran = recorded("one/contest.py", "two/runner.py", BUDGET="520", CALLS="130")
    assert result.returncode == 0
    scripts = [line.split()[1] for line in ran if "--budget" in line]
    assert [name.rpartition("/")[2] for name in scripts[:2]] == [
        "contest.py",
        "runner.py",
    ]
    assert 320 < budget_of(ran, "contest.py") <= 520 - 130 - 10
    assert 320 < budget_of(ran, "runner.py") <= 520 - 130 - 10
    assert 450 < budget_of(ran, "benchmarks.gpu.everyday") <= 520 - 10
    assert "benchmarks.gpu.report" in ran[-1]


@pytest.mark.parametrize("is_wanted", [False, True])
def test_calls_are_left_out_if_unwanted_or_without_feinsum(recorded, is_wanted):
    """Who wants none is told nothing, others what is missing; folders get the whole
    budget.
    """
    variables = {"HAS_NO_FEINSUM": "1"} if is_wanted else {"CALLS": "0"}
    result, ran = recorded("one/contest.py", BUDGET="520", **variables)
    assert result.returncode == 0
    reason = "feinsum cannot be imported: no calls of the everyday suite (No module"
    assert (reason in result.stderr) == is_wanted
    assert ("import feinsum" in ran) == is_wanted
    assert not [line for line in ran if "everyday" in line]
    assert 450 < budget_of(ran, "contest.py") <= 510


@pytest.mark.parametrize(
    ("mode", "extras"), [("cuda", "cli"), ("opencl", "cli,opencl,plots")]
)
def test_feinsum_is_installed_from_the_wheels_alone(recorded, tmp_path, mode, extras):
    """Before anything else; no index is asked, and the folder is no contest."""
    _, ran = recorded("wheels/feinsum-1-py3-none-any.whl", mode=mode)
    assert ran[0].split(maxsplit=1)[1] == (
        "-m pip install --quiet --no-compile --no-index --find-links "
        f"{tmp_path / 'wheels'} feinsum[{extras}]"
    )
    assert not [line for line in ran[1:] if "wheels" in line]


def test_nothing_runs_if_the_installation_fails(recorded):
    """The exit code is 1, whatever pip's is: 2 and 3 mean something else."""
    wheel = "broken/feinsum-1-py3-none-any.whl"
    result, ran = recorded(wheel, "one/contest.py")
    assert result.returncode == 1
    assert "the installation failed" in result.stderr
    assert len(ran) == 1


def test_what_a_failing_script_measured_is_reported(tmp_path):
    """With what the others measured; the exit code is 1."""
    for name, code in (("one", 1), ("two", 0)):
        line = {"suite": "made", "name": name, "flops": 1, "entry_bytes": 1,
                "seconds": {"feinsum": [1.0], "jax": [2.0]}}  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        (folder / "contest.jsonl").write_text(json.dumps(line))
        (folder / "contest.py").write_text(f"raise SystemExit({code})")
    folders = [str(tmp_path / name) for name in ("one", "two")]
    result = call("cuda", *folders, CALLS="0", OUT=str(tmp_path), PYTHONPATH=str(FAKE))
    assert result.returncode == 1
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert [entry["name"] for entry in document["entries"]] == ["one", "two"]


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
