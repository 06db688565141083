"""Calls of the everyday suite on a GPU, as far as they need none: numpy is CuPy."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from benchmarks.experiments.entries import everyday, halves
from benchmarks.gpu import everyday as calls
from benchmarks.gpu import report
from feinsum.dtypes import is_half, is_inexact

ENTRIES = {(e.name, e.group): e for e in (*everyday(), *halves())}
SMALLEST = {
    e.dtype: e for e in sorted(ENTRIES.values(), key=lambda e: -e.footprint_bytes)
}
"""Of each dtype the smallest entry."""


def write(path, names):
    path.write_text("".join(f"{json.dumps({'name': name})}\n" for name in names))


@pytest.mark.parametrize("jobs", [1, 3, 8])
def test_processes_share_all_entries(tmp_path, jobs):
    """Each has the smallest of its own first; those with a line are left out."""
    path, sizes = tmp_path / "everyday.jsonl", {e.group for e in everyday()}
    done = {f"{e.name} {e.group}" for e in everyday()[::5]}
    write(path, done)
    shares = [calls.entries_left(path, sizes, k, jobs) for k in range(jobs)]
    shared = [(e.name, e.group) for share in shares for e in share]
    assert len(shared) == len({*shared})
    left = {key for key in ENTRIES if " ".join(key) not in done}
    assert {*shared} == left
    for share in shares:
        footprints = [e.footprint_bytes for e in share]
        assert footprints == sorted(footprints)


def test_values_are_of_the_shapes_and_the_dtype():
    """Fractions but halves stay away from zero, complex numbers have both parts."""
    for dtype, entry in SMALLEST.items():
        values = calls.values_of(entry, np)
        assert {name: x.shape for name, x in values.items()} == entry.arrays
        for array in values.values():
            assert array.dtype == dtype
            least, most = (0.49, 1.51) if is_inexact(array.dtype) else (0, 9)
            least, most = (-0.51, 0.51) if is_half(array.dtype) else (least, most)
            parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
            for part in parts:
                assert (part >= least).all()
                assert (part <= most).all()


OURS = {"feinsum": (int, lambda _: None)}
"""Calls that need no GPU."""


def test_what_was_not_timed_is_left_to_a_resumed_run(tmp_path):
    """It has no line; calls that failed have one."""
    path, meeting = tmp_path / "everyday.jsonl", calls.Meeting(tmp_path)
    built = [(OURS, {"name": "late"}), ({}, {"name": "failed", "failed": ["why"]})]
    calls.time_all(built, str(path), meeting, end=0.0)
    assert [line["name"] for line in report.read(path)] == ["failed"]
    calls.time_all(built[:1], str(path), meeting, end=time.time() + 60)
    assert [line["name"] for line in report.read(path)] == ["failed", "late"]


def test_a_resumed_run_goes_on_after_an_error(tmp_path):
    """What raised it has a line, what would have followed has none."""

    def broken():
        raise RuntimeError("out of memory")

    path, meeting = tmp_path / "everyday.jsonl", calls.Meeting(tmp_path)
    built = [
        (OURS, {"name": "first"}),
        ({**OURS, "jax": (broken, id)}, {"name": "second"}),
        (OURS, {"name": "third"}),
    ]
    with pytest.raises(RuntimeError, match="out of memory"):
        calls.time_all(built, str(path), meeting, end=time.time() + 60)
    first, second = report.read(path)
    assert (first["name"], second["name"]) == ("first", "second")
    assert second["failed"] == ["RuntimeError('out of memory')"]
    with meeting.alone():
        pass  # the lock is free


@pytest.mark.parametrize(("n_left", "code"), [(0, 0), (2, 1)])
def test_entries_without_a_line_are_a_failure(tmp_path, monkeypatch, n_left, code):
    """The exit code says that the time ran out, as those of the other scripts do."""
    path = tmp_path / "everyday.jsonl"
    large = [" ".join(key) for key in ENTRIES if key[1] == "large"]
    write(path, large[n_left:])
    monkeypatch.setattr(calls, "load_cupy", lambda: None)
    monkeypatch.setattr(calls, "run_workers", lambda options, folder: True)
    monkeypatch.setattr("sys.argv", ["everyday", "--out", str(path)])
    assert calls.main() == code


def test_errors_are_relative_to_the_largest_entry():
    """Of every dtype: differences of unsigned numbers and of booleans are none."""
    for dtype in SMALLEST:
        expected = np.array([0, 1, 0]).astype(dtype)
        other = np.array([1, 1, 0]).astype(dtype)
        results = {"feinsum": other, "jax": expected.copy()}
        assert calls.errors_of(results, expected, np) == {"feinsum": 1, "jax": 0}
        zero = np.zeros(3, dtype)
        assert calls.errors_of({"jax": zero}, zero, np)["jax"] == 0
