"""Calls of the everyday suite on a GPU, as far as they need none: numpy is CuPy."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.experiments.entries import list_everyday, list_halves
from benchmarks.gpu import everyday as calls
from benchmarks.gpu import report
from benchmarks.gpu.race import Race, make_parser
from feinsum.dtypes import is_half, is_inexact

ENTRIES = {(e.name, e.group): e for e in (*list_everyday(), *list_halves())}
SMALLEST = {
    e.dtype: e for e in sorted(ENTRIES.values(), key=lambda e: -e.footprint_bytes)
}
"""Of each dtype the smallest entry."""


def write(path, names):
    lines = [json.dumps({"name": name, "failed": ["why"]}) for name in names]
    path.write_text("".join(f"{line}\n" for line in lines))


def race_of(path, names, **options):
    """One process of a race, with the words that a race has given it."""
    words = ["--out", str(path), "--worker", "0", "--end", "0"]
    found = make_parser("A race.", 60.0).parse_args(
        [*words, "--meeting", str(path.parent)]
    )
    return Race("", names, SimpleNamespace(**{**vars(found), **options}))


@pytest.mark.parametrize("jobs", [1, 3, 8])
def test_processes_share_all_entries(tmp_path, jobs):
    """Each has the smallest of its own first; those with a result are left out."""
    path = tmp_path / "everyday.jsonl"
    entries = calls.list_entries({e.group for e in list_everyday()})
    names = [f"{e.name} {e.group}" for e in entries]
    done = {f"{e.name} {e.group}" for e in list_everyday()[::5]}
    write(path, done)
    races = [race_of(path, names, worker=k, jobs=jobs) for k in range(jobs)]
    shared = [names[k] for race in races for k in race.list_missing()]
    assert len(shared) == len({*shared})
    assert {*shared} == {" ".join(key) for key in ENTRIES} - done
    for race in races:
        footprints = [entries[k].footprint_bytes for k in race.list_missing()]
        assert footprints == sorted(footprints)


def test_values_are_of_the_shapes_and_the_dtype():
    """Fractions but halves stay away from zero, complex numbers have both parts."""
    for dtype, entry in SMALLEST.items():
        values = calls.draw_values(entry, np)
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
    path, late = tmp_path / "everyday.jsonl", time.time() + 60
    prepared = [(OURS, {"name": "late"}), ({}, {"name": "failed", "failed": ["why"]})]
    names = ["late", "failed"]
    race = race_of(path, names)
    race.time_all(prepared, calls.time_calls, race.reserve)
    assert [line["name"] for line in report.read_lines(path)] == ["failed"]
    race_of(path, names, end=late).time_all(
        prepared[:1], calls.time_calls, race.reserve
    )
    assert race.list_missing() == []


def test_a_resumed_run_goes_on_after_an_error(tmp_path):
    """What raised it has a result, what would have followed has none."""

    def broken():
        raise RuntimeError("out of memory")

    path, names = tmp_path / "everyday.jsonl", ["first", "second", "third"]
    contenders = OURS, {**OURS, "jax": (broken, id)}, OURS
    prepared = [(x, {"name": n}) for x, n in zip(contenders, names, strict=True)]
    race = race_of(path, names, end=time.time() + 60)
    with pytest.raises(RuntimeError, match="out of memory"):
        race.time_all(prepared, calls.time_calls, race.reserve)
    assert race.list_missing() == [2]
    assert report.read_lines(path)[-1]["failed"] == ["RuntimeError('out of memory')"]
    with race.reserve():
        pass  # the lock is free


@pytest.mark.parametrize(("n_left", "code"), [(0, 0), (2, 1)])
def test_entries_without_a_line_are_a_failure(tmp_path, monkeypatch, n_left, code):
    """The exit code says that the time ran out, as those of the other scripts do."""
    path = tmp_path / "everyday.jsonl"
    large = [" ".join(key) for key in ENTRIES if key[1] == "large"]
    write(path, large[n_left:])
    monkeypatch.setattr(calls, "load_cupy", lambda: None)
    words = ["everyday", "--out", str(path), "--budget", "0"]
    monkeypatch.setattr("sys.argv", words)
    assert calls.main() == code


def test_errors_are_relative_to_the_largest_entry():
    """Of every dtype: differences of unsigned numbers and of booleans are none."""
    for dtype in SMALLEST:
        expected = np.array([0, 1, 0]).astype(dtype)
        other = np.array([1, 1, 0]).astype(dtype)
        results = {"feinsum": other, "jax": expected.copy()}
        assert calls.compute_errors(results, expected, np) == {"feinsum": 1, "jax": 0}
        zero = np.zeros(3, dtype)
        assert calls.compute_errors({"jax": zero}, zero, np)["jax"] == 0
