"""``feinsum bound``."""

from __future__ import annotations

import json

import pytest

from feinsum.db import open_store
from feinsum.measure import open_device
from tests.bounds.test_programs import BICG
from tests.cli.facts import fast_peaks

PRODUCT = ("ij,jk->ik", "--sizes", "i=2000,j=2000,k=2000")


def document(run, *arguments):
    result = run("bound", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_device_without_limits_has_bytes_and_no_times(run):
    """The last level is the memory, and no level moves less than all arrays."""
    found = document(run, *PRODUCT)
    assert found["levels"][-1]["name"] == "DRAM"
    assert found["compulsory_bytes"] == 3 * 8 * 2000**2
    assert all(one["bytes"] >= found["compulsory_bytes"] for one in found["levels"])
    assert found["seconds"] is found["limit"] is None


def test_measured_limits_give_times(run, database):
    """The time of the memory is its bytes over its bandwidth."""
    peaks = fast_peaks(open_device().device)
    with open_store(database) as store:
        store.add(peaks)
    found = document(run, *PRODUCT)
    memory = found["levels"][-1]
    assert memory["seconds"] == memory["bytes"] / peaks.bandwidth_bytes_per_s
    assert found["operations_s"] == pytest.approx(
        (2 * 2000**3 - 2000**2) / peaks.operations_per_s["<f8"]
    )
    assert found["seconds"] >= memory["seconds"]


def test_the_table_fits_80_columns_and_says_what_was_considered(run):
    """One line for each level, and what the bound is the least of."""
    result = run("bound", "ij,jk,kl->il", "--sizes", "i=999,j=999,k=999,l=999")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "least over all orders and fusions of 3 operands"


def test_sizes_that_are_known_at_run_time_get_the_default(run):
    """As in a tuning, which the table names; given ones go before."""
    found = document(run, "ij,j->i", "--sizes", "i=n,j=4")
    assert found["sizes"]["n"] == 10**6
    found = document(run, "ij,j->i", "--sizes", "i=n,j=4", "--size", "n=100")
    assert found["compulsory_bytes"] == 8 * (400 + 4 + 100)
    result = run("bound", "ij,jk->ik", "--sizes", "i=n,j=4,k=5")
    assert "at n=810000" in result.stdout.splitlines()
    assert "at " not in run("bound", *PRODUCT).stdout.replace("at least", "")


def test_one_memory_can_be_given_instead_of_a_device(run):
    """The chain of two products, in 10,000 entries."""
    sizes = "i=2000,j=2000,k=2000,l=2000"
    arguments = ("ij,jk,kl->il", "--sizes", sizes, "--memory", "80000")
    (level,) = document(run, *arguments)["levels"]
    assert level["memory_ahead_bytes"] == 80_000
    assert level["stored_bytes"] / 8 == pytest.approx(3.2e8, rel=1e-3)
    assert level["steps"] == ["jk,kl->jl", "ij,jl->il"]


def test_what_allows_no_bound_is_one_line(run):
    """A memory that is too small, an unknown size."""
    result = run("bound", *PRODUCT, "--memory", "8")
    assert result.exit_code == 1
    assert result.stderr.startswith("feinsum: [bound-failed] a memory of 8 bytes")
    result = run("bound", *PRODUCT, "--size", "n=3")
    assert result.exit_code == 2
    assert "no size parameter is named n" in result.stderr


def test_a_program_is_bounded_as_written(run, tmp_path):
    """Its matrix is read once for both statements; options of an einsum are refused."""
    file = tmp_path / "bicg.txt"
    file.write_text(BICG)
    sizes = ("--size", "m=700,n=700", "--memory", "8000")
    result = run("bound", "--program", str(file), *sizes, "--json")
    assert json.loads(result.stdout)["compulsory_bytes"] == (700**2 + 4 * 700) * 8
    refused = run("bound", "ij->i", "--program", str(file))
    assert refused.exit_code == 2
    assert "cannot be combined with a program" in refused.stderr
