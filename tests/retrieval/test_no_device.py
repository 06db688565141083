"""Machines on which nothing can be looked up: builds go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import warnings
from feinsum import FeinsumWarning, explain, retrieve
from feinsum.errors import DeviceUnavailableError
from tests.retrieval.kernels import reduction

kernel = reduction().kernel
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert retrieve(kernel, database=sys.argv[1]) is kernel
(warning,) = (w for w in caught if issubclass(w.category, FeinsumWarning))
print(warning.message)
print(explain(kernel, database=sys.argv[1]))
try:
    retrieve(kernel, database=sys.argv[1], on_miss="raise")
except DeviceUnavailableError:
    print("raised")
"""


def test_without_a_device_a_build_goes_on(tmp_path):
    """The very kernel comes back, and the reason is told."""
    words = "no device works here: opencl: no device is found"
    nothing = {
        "FEINSUM_CC": "/nowhere/cc",
        "OCL_ICD_VENDORS": "/nowhere/none.icd",
        "FEINSUM_DEVICE": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "facts.sqlite")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **nothing},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    warning, *explanation, raised = done.stdout.strip().splitlines()
    assert warning.startswith(f"kernel returned unchanged: {words}")
    assert explanation[0].startswith(f"not looked up: {words}")
    assert explanation[-1] == "kernel: unchanged"
    assert raised == "raised"
    assert not (tmp_path / "facts.sqlite").exists()
