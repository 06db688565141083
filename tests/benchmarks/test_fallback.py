"""The benchmark of the fallback runs."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.pages import ROOT


def test_an_einsum_gets_a_row_and_a_verdict() -> None:
    """A time, a ratio and its interval; then what is slower, by name or none."""
    command = [sys.executable, "benchmarks/fallback.py", "--only", "^mass$"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    row = next(x for x in done.stdout.splitlines() if x.startswith("| mass "))
    _, _, milliseconds, ratio, interval, _ = (cell.strip() for cell in row.split("|"))
    low, high = map(float, interval.split(" to "))
    assert float(milliseconds) > 0
    assert low <= float(ratio) <= high
    verdict = re.search(
        "slower than the untransformed kernel: (mass|none)$", done.stdout, re.M
    )
    assert verdict
    if high != 1:  # an end that rounds to 1.00 may stand on either side of it
        assert verdict[1] == ("mass" if high < 1 else "none")
