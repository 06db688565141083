"""Scripts that measure run, and print what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from random import Random

import loopy as lp
import pytest

from benchmarks import (
    calls,
    canonicalization,
    database,
    fallback,
    fresh,
    programs,
    random_calls,
    retrieve,
)
from feinsum import raise_kernel
from tests.children import run_python
from tests.portions import spread
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

Main = Callable[[list[str]], None]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run a script with these words; return the lines that it prints."""

    def run(main: Main, *words: object) -> list[str]:
        main([str(word) for word in words])
        return capsys.readouterr().out.splitlines()

    return run


def test_fresh_processes_are_timed(printed) -> None:
    """Two tables with a row of six numbers, one for each of both processes."""
    words = "--only", "divergence_b1_Ni4", "--max-gflop", "0.01"
    rows = [x.split() for x in printed(fresh.main, *words) if "divergence" in x]
    assert [len(row) for row in rows] == [7, 7]
    for _, *seconds in rows:
        assert all(float(value) >= 0 for value in seconds)
        assert float(seconds[-1]) > 0


def test_random_calls_are_compared(printed) -> None:
    """A ratio for every call; equal seeds draw equal einsums."""
    first, worst, *_ = printed(random_calls.main, "--seconds", 0, "--seed", 3)
    assert first.startswith("1 calls, mean ratio ")
    assert "feinsum" in worst
    assert "numpy" in worst
    drawn = [next(random_calls.draw_einsums(Random(3))) for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_program_gets_a_row(printed) -> None:
    """Times, peaks and the ratio to the best rival, of a tiny program."""
    words = "--scale", "0.05", "--rounds", "1", "--json", "--dtype", "float64"
    without = "--only", "dg", "--without", "torch", "compiled", "jax"
    (row,) = json.loads("".join(printed(programs.main, *words, *without)))["rows"]
    assert row["program"] == "dg"
    assert row["ratio"] == row["numpy"] / row["feinsum"]
    assert row["feinsum_bytes"] >= 0
    assert row["numpy_bytes"] >= 0


def test_every_kind_of_call_has_a_row(printed) -> None:
    """A line for operands on the host, and one for a device where there is one."""
    rows = [line.split() for line in printed(calls.main, "--rounds", 3)[1:]]
    assert [row[1] for row in rows] in (["host"] * 3, ["host", "device"] * 3)
    assert all(float(row[-1]) > 0 for row in rows)


def test_the_stages_of_a_retrieval_are_timed(printed, monkeypatch) -> None:
    """A number for every stage."""
    monkeypatch.setattr(lp, "CACHING_ENABLED", lp.CACHING_ENABLED)  # it changes that
    words = "--rounds", "2", "--records", "50", "--only", retrieve.CAPTURED[0]
    first, *lines = printed(retrieve.main, *words)
    assert first.startswith("50 facts; device: ")
    (row,) = [x for x in lines if x.strip().startswith("k10")]
    assert len(row.split()) == 1 + len(retrieve.STAGES) + 1


def test_the_largest_kernel_of_a_retrieval_is_raised() -> None:
    """All 71 instructions in 8 nests, and nothing is refused."""
    raised = raise_kernel(retrieve.make_operators())
    sizes = [len(nest.instructions) for nest in raised.raised]
    assert (sum(sizes), len(sizes), sizes[:3]) == (71, 8, [12, 6, 6])
    assert not raised.refused


def test_the_fallback_has_a_row_and_a_verdict(printed) -> None:
    """A time, a ratio and its interval; then what is slower, by name or none."""
    lines = printed(fallback.main, "--only", "^mass$")
    row = next(x for x in lines if x.startswith("| mass "))
    _, _, milliseconds, ratio, interval, _ = (cell.strip() for cell in row.split("|"))
    low, high = map(float, interval.split(" to "))
    assert float(milliseconds) > 0
    assert low <= float(ratio) <= high
    said = "slower than the untransformed kernel: (mass|none)"
    (verdict,) = filter(None, (re.search(f"{said}$", line) for line in lines))
    if high != 1:  # an end that rounds to 1.00 may stand on either side of it
        assert verdict[1] == ("mass" if high < 1 else "none")


def test_a_database_has_every_cost(printed) -> None:
    """A row for each; every fact is another one, of as many workloads and devices as
    are claimed.
    """
    lines = printed(database.main, "--records", "200", "--rounds", "20")
    for what in ("writing", "size on disk", "opening", "exact look-up", "a miss"):
        assert any(line.strip().startswith(what) for line in lines)
    n_of_one = database.N_RECIPES * database.N_DEVICES
    made = list(islice(database.make_facts(10**6), 2 * n_of_one))
    assert len({record.id for record in made}) == 2 * n_of_one
    assert len({record.workload for record in made}) == 2
    devices = {record.environment.device.id for record in made}
    assert len(devices) == database.N_DEVICES


def test_canonicalization_has_tables_and_figures(
    printed, tmp_path, monkeypatch
) -> None:
    """Tables fit a terminal: the 48 contractions of the suite with medians, the growth
    of each family beside that of n log n, and what is known to be hard. The figures
    have the bars, and the growth.
    """
    small = {name: family[:6] for name, family in canonicalization.FAMILIES.items()}
    once = [replace(one, n_copies=1) for one in canonicalization.list_tccg()]
    monkeypatch.setattr(canonicalization, "FAMILIES", small)
    monkeypatch.setattr(canonicalization, "list_tccg", lambda: once)
    printed_lines = printed(canonicalization.main, "--rounds", 2, "--out", tmp_path)
    lines = [line.strip() for line in printed_lines]
    assert sum(line.startswith("ab") for line in lines) == 48
    assert sum(", median " in line for line in lines) == 3
    for family in ("chain of matrices", "DG batch (divergence)", "pointwise product"):
        (line,) = [x for x in lines if x.startswith(f"{family}: ")]
        assert "slope" in line
        assert "n log n" in line
    for name in ("Paley graph 29", "CFI over Petersen", "trace of 64 matrices"):
        assert any(line.startswith(name) for line in lines)
    tables = [x for x in printed_lines if "(" in x and "slope" not in x]
    assert max(map(len, tables)) <= 80
    assert not any("…" in line for line in lines)
    for name in ("growth", "tccg"):
        figure = tmp_path / f"canonicalization-{name}.png"
        assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "case",
    spread(
        ["mass, triangle", "Helmholtz action, hexahedron", "Laplace, quadrilateral"], 1
    ),
)
def test_a_kernel_of_firedrake_and_what_is_found_for_it_compute_the_same(
    case, monkeypatch
) -> None:
    """Transformed by what is predicted, gathered and scattered through maps.

    The script has a process of its own: libraries built with ``-ffast-math``, as PyOP2
    does, flush subnormal numbers to zero in the whole process that loads them.
    """
    words = "--only", f"^{case}, 2$", "--cells", "40", "--rounds", "1"
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")
    lines = run_python("benchmarks/firedrake.py", *words).stdout.splitlines()
    form, cell = case.split(", ")
    (row,) = (x for x in lines if x.startswith(f"| {form} "))
    cells = [one.strip() for one in row.strip("|").split("|")]
    assert cells[:3] == [form, cell, "2"]
    n_found, n_nests = map(int, re.findall(r"\d+", cells[-1]))
    assert cells[-1] == f"recipes, {n_found} of {n_nests} nests"
    assert n_found == n_nests > 0
    assert any(f"({case}, 2)" in line for line in lines)
