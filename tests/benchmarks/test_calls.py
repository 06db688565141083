"""The benchmark of calls runs."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.docs.pages import ROOT


def test_every_kind_of_call_has_a_row():
    """A line for operands on the host, and one for a device where there is one."""
    command = [sys.executable, str(ROOT / "benchmarks" / "calls.py"), "--rounds", "3"]
    ours = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=ours, capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()[1:]
    places = [line.split()[1] for line in rows]
    assert places in (["host"] * 3, ["host", "device"] * 3)
    assert all(float(line.split()[-1]) > 0 for line in rows)
