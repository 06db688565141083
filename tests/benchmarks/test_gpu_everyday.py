"""Calls of the everyday suite on a GPU, as far as they need none: numpy is CuPy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from math import inf

import numpy as np
import pytest

from benchmarks.experiments.entries import everyday
from benchmarks.gpu import everyday as calls
from benchmarks.gpu import report

ENTRIES = {(e.name, e.group): e for e in everyday()}
SMALLEST = {e.dtype: e for e in sorted(everyday(), key=lambda e: -e.footprint_bytes)}
"""Of each dtype the smallest entry."""


@pytest.mark.parametrize("jobs", [1, 3, 8])
def test_processes_share_all_entries(jobs):
    """Each has the smallest of its own first; what is done is left out."""
    entries = everyday()
    done = {f"{e.name} {e.group}" for e in entries[::5]}
    shares = [calls.share_of(entries, k, jobs, done) for k in range(jobs)]
    shared = [(e.name, e.group) for share in shares for e in share]
    assert len(shared) == len({*shared})
    left = {key for key in ENTRIES if " ".join(key) not in done}
    assert {*shared} == left
    for share in shares:
        sizes = [e.footprint_bytes for e in share]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize("dtype", SMALLEST)
def test_values_are_of_the_shapes_and_the_dtype(dtype):
    """Fractions stay away from zero, complex numbers have both parts."""
    entry = SMALLEST[dtype]
    values = calls.values_of(entry, np)
    assert {name: x.shape for name, x in values.items()} == entry.arrays
    for array in values.values():
        assert array.dtype == dtype
        least, most = (0.49, 1.51) if array.dtype.kind in "fc" else (0, 9)
        parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
        for part in parts:
            assert (part >= least).all()
            assert (part <= most).all()


@pytest.mark.parametrize("dtype", SMALLEST)
def test_errors_are_relative_to_the_largest_entry(dtype):
    """Of every dtype: differences of unsigned numbers and of booleans are none."""
    expected = np.array([0, 1, 0]).astype(dtype)
    other = np.array([1, 1, 0]).astype(dtype)
    results = {"cupy": [expected], "feinsum": [other], "jax": [expected.copy()]}
    errors = calls.errors_of(results, np)
    assert errors == {"cupy": 0, "feinsum": 1, "jax": 0}
    zero = np.zeros(3, dtype)
    assert calls.errors_of({"cupy": [zero], "jax": [zero]}, np)["jax"] == 0


def test_contenders_are_timed_in_turns(monkeypatch):
    """As often each; every call in a row, and the last one is waited for."""
    monkeypatch.setattr(calls, "LONG_S", inf)
    made = []

    def contender(name):
        return lambda: made.append(name), lambda _: made.append(f"{name} ends")

    one, row = calls.timed({name: contender(name) for name in ("ours", "theirs")})
    assert {len(x) for x in (*one.values(), *row.values())} == {calls.ROUNDS}
    turn = ["ours", "ours ends", *["ours"] * calls.N_IN_A_ROW, "ours ends"]
    both = [*turn, *(name.replace("ours", "theirs") for name in turn)]
    assert made[4:] == both * calls.ROUNDS


def test_the_summary_has_failures_and_measurements(tmp_path):
    """Of all lines of the file."""
    lines = [
        {"name": "outer large", "failed": "DeviceUnavailableError('no memory')"},
        {"name": "matmul large", "flops": 2e9, "entry_bytes": 8e6,
         "seconds": {"feinsum": [1e-3], "jax": [3e-3]}},
    ]  # fmt: skip
    path = tmp_path / "everyday.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    text = calls.summary(str(path))
    assert "outer large: DeviceUnavailableError('no memory')" in text
    assert "everyday, 1 entries: 3.00 against JAX" in text


ASLEEP = "import time; time.sleep(600)"


@pytest.mark.parametrize(
    ("code", "limit_s", "is_well"),
    [("pass", 60, True), ("raise SystemExit(1)", 60, False), (ASLEEP, 0, False)],
)
def test_a_process_that_fails_or_is_late_is_a_failure(code, limit_s, is_well):
    """The others may end well; none is left."""
    workers = [
        subprocess.Popen([sys.executable, "-S", "-c", one]) for one in (code, "pass")
    ]
    assert calls.have_ended(workers, time.time() + limit_s) == is_well
    assert all(worker.poll() is not None for worker in workers)


def test_what_was_not_timed_is_left_to_a_resumed_run(tmp_path):
    """It has no line; calls that failed have one."""
    path = tmp_path / "everyday.jsonl"
    ours = {"feinsum": (int, lambda _: None)}
    built = [(ours, {"name": "late"}), ({}, {"name": "failed", "failed": "why"})]
    calls.time_all(built, str(path), end=0.0)
    assert [line["name"] for line in report.read(path)] == ["failed"]
    calls.time_all(built[:1], str(path), end=time.time() + 60)
    assert [line["name"] for line in report.read(path)] == ["failed", "late"]
