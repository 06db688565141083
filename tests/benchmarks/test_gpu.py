"""The script that measures a GPU, as far as it can be tried without one."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.children import run_command
from tests.docs.pages import ROOT, page

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
PARTS = ["contest", "rest", "calls", "trials", "smoke"]


RECORDER = """#!/bin/sh
case "$*" in
*"import cupy"*) [ -z "$HAS_NO_GPU" ] || { echo "no CUDA" >&2; exit 1; } ; exit 0 ;;
*"import feinsum"*) exit 0 ;;
esac
echo "$*" >> "$RECORD"
case "$*" in *"$BROKEN"*) exit 2 ;; esac
"""
"""In the place of Python: it records its arguments, and fails as variables say."""


@pytest.fixture
def recorded(tmp_path):
    """Runs the script on a pack; the result, and what ran."""
    python, record = tmp_path / "python", tmp_path / "record"
    python.write_text(RECORDER)
    python.chmod(0o755)
    for name in ("contest/bundle.json", "wheels/feinsum-1-py3-none-any.whl"):
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True)
        path.touch()
    shutil.copy(SCRIPT, tmp_path / "pack")

    def run(*parts, script=SCRIPT, pack=(tmp_path / "pack",), **variables):
        record.write_text("")
        given = {"PYTHON": str(python), "RECORD": str(record), "BROKEN": "nothing",
                 **variables}  # fmt: skip
        words = *map(str, pack), *parts
        result = run_command(script, *words, is_checked=False, **given)
        return result, record.read_text().splitlines()

    return run


def names(ran):
    """The parts that ran."""
    marks = {"--first 24": "contest", "gpu.contest": "rest", "gpu.everyday": "calls",
             "bundle.runner": "trials", "smoke.py": "smoke"}  # fmt: skip
    found = [next((v for k, v in marks.items() if k in line), None) for line in ran]
    return [name for name in found if name]


def test_the_parts_run_in_the_order_of_their_weight(recorded, tmp_path):
    """Each for two minutes at most, with its results in a folder of the pack."""
    result, ran = recorded()
    assert result.returncode == 0, result.stderr
    assert names(ran) == PARTS
    for line in ran:
        if "--budget" in line:
            assert 60 < int(line.rpartition(" --budget ")[2]) <= 110
    results = tmp_path / "pack" / "results"
    assert f"{tmp_path / 'pack'}/contest --out {results}/contest.jsonl" in ran[0]
    assert (results / "smoke.txt").exists()
    assert f"written: {results}" in result.stderr


def test_a_pack_brings_its_script(recorded, tmp_path):
    """Which needs no arguments there; parts can be chosen, and results go elsewhere."""
    out = tmp_path / "out"
    script = tmp_path / "pack" / "gpu.sh"
    result, ran = recorded("trials", "contest", script=script, pack=(), OUT=str(out))
    assert result.returncode == 0
    assert names(ran) == ["trials", "contest"]
    assert f"--out {out}/trials.jsonl" in ran[0]


def test_a_part_that_fails_does_not_stop_the_others(recorded):
    """The exit code says so, and a line which it is."""
    result, ran = recorded(BROKEN="gpu.contest")
    assert result.returncode == 1
    assert names(ran) == PARTS
    assert "contest: unfinished" in result.stderr
    assert "calls: unfinished" not in result.stderr


def test_a_part_without_time_is_left(recorded):
    """Its scripts are not started."""
    result, ran = recorded("contest", PART_S="5")
    assert result.returncode == 1
    assert "no time is left" in result.stderr
    assert ran == []


def test_feinsum_is_installed_once_and_from_the_wheels_alone(recorded, tmp_path):
    """Also over an older build; before what needs it, and not for the contest."""
    assert not any("pip" in line for line in recorded("contest")[1])
    _, ran = recorded("calls", "smoke")
    first, second, *others = ran
    options = f"--no-index --find-links {tmp_path / 'pack' / 'wheels'}"
    assert first == f"-m pip install --quiet --no-compile {options} feinsum[cli]"
    assert second.endswith(f"{options} --no-deps --force-reinstall feinsum")
    assert not any("pip" in line for line in others)
    assert not any("pip" in line for line in recorded("calls")[1])


def test_what_needs_feinsum_does_not_run_if_the_installation_fails(recorded):
    """The exit code is 1, whatever pip's is: 2 and 3 mean something else."""
    result, ran = recorded("calls", "trials", BROKEN="pip install")
    assert result.returncode == 1
    assert names(ran) == ["trials"]


def test_without_a_gpu_nothing_runs(recorded):
    """Exit code 3, one line with the reason."""
    result, ran = recorded(HAS_NO_GPU="1")
    assert result.returncode == 3
    assert result.stderr == (
        "gpu.sh: CuPy finds no GPU here; nothing is run (no CUDA)\n"
    )
    assert ran == []


def test_bad_usage_is_refused(recorded, tmp_path):
    """A folder that is no pack, and parts that there are not."""
    for words, message in (
        ({"pack": (tmp_path,)}, "no pack of make gpu-pack"),
        ({"pack": ()}, "no pack of make gpu-pack"),
    ):
        result, ran = recorded(**words)
        assert (result.returncode, ran) == (2, [])
        assert message in result.stderr
    result, _ = recorded("contests")
    assert result.returncode == 2
    assert "expected contest rest calls trials smoke, got 'contests'" in result.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_the_script_has_no_findings():
    """By shellcheck, where it is installed."""
    subprocess.run(["shellcheck", str(SCRIPT)], check=True)


def test_every_variable_and_part_of_the_script_is_documented():
    """What stands in its head, and what the page says, are the same."""
    head = re.findall(r"^#   ?([A-Za-z_]+)  +\w", SCRIPT.read_text(), re.MULTILINE)
    text = page("docs/how-to/gpu.md")
    documented = re.findall(r"^\| `([A-Za-z_]+)` ", text, re.MULTILINE)
    assert {*documented} == {*PARTS, "PYTHON", "OUT", "PART_S"}
    assert {*head} >= {*PARTS}
