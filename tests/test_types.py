"""Type checkers find the types of feinsum where it is installed as sources."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

import feinsum

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import feinsum
import numpy as np

A = feinsum.array("A", ("n", 4))
reveal_type(feinsum.einsum("ij->i", A))
reveal_type(feinsum.call_einsum("ij->i", np.eye(3)))
feinsum.array("A", 4, wrong=1)
"""


@pytest.fixture
def site(tmp_path):
    """The packages of a fresh environment with an editable feinsum, and no other."""
    build = (
        f"from setuptools import build_meta as b; b.build_editable({str(tmp_path)!r})"
    )
    command = [sys.executable, "-c", build]
    # the extension is optional, and what it is compiled to has no types
    subprocess.run(
        command, cwd=ROOT, env=os.environ | {"CC": "false"}, check=True,
        capture_output=True,
    )  # fmt: skip
    venv.create(tmp_path / "env")
    folder = sysconfig.get_path(
        "purelib", "venv", {"base": str(tmp_path / "env")} | _versions()
    )
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return Path(folder)


def _versions():
    names = ("py_version_short", "py_version_nodot", "abiflags", "platlibdir")
    return {name: sysconfig.get_config_var(name) for name in names}


def test_an_editable_installation_is_a_path(site):
    """No hook, which type checkers do not run; the package says that it has types."""
    (path,) = site.glob("*.pth")
    assert path.read_text().strip() == str(ROOT)
    assert (Path(feinsum.__file__).parent / "py.typed").is_file()


@pytest.mark.long
def test_mypy_finds_the_types(site, tmp_path):
    """Of results, and it refuses what is no argument."""
    (site / "numpy").symlink_to(Path(np.__file__).parent)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    python = tmp_path / "env" / "bin" / "python"
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--python-executable",
            str(python),
            str(program),
        ],
        cwd=tmp_path,
        env={
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 'Revealed type is "feinsum.ir.einsums.BatchedEinsum"' in said.stdout
    assert 'Revealed type is "numpy.ndarray[' in said.stdout
    assert 'Unexpected keyword argument "wrong"' in said.stdout
    assert said.stdout.count("error:") == 1
