"""The suites are what the paper says, and one copy serves everyone."""

from __future__ import annotations

from importlib.resources import files
from math import prod

import pytest

from feinsum.ir import SizeParam
from feinsum.suites import NAMES, read_suite, read_suite_documents, scale_sizes
from tests.docs.pages import ROOT
from tests.docs.pages import files as files_of

ENTRIES = [entry for name in NAMES for entry in read_suite(name)]


def test_the_data_are_in_the_package_and_nowhere_else() -> None:
    """Every file of a suite lies beside the module that reads it."""
    found = [path for path in files_of(".json") if path.stem in NAMES]
    assert {path.parent for path in found} == {ROOT / "feinsum" / "suites"}
    assert {p.name for p in files("feinsum.suites").iterdir()} >= {
        f"{name}.json" for name in NAMES
    }


def test_an_entry_has_every_key_that_is_written() -> None:
    """The count of entries, and their names, are those of the files."""
    for name in NAMES:
        assert [e.name for e in read_suite(name)] == [
            e["name"] for e in read_suite_documents(name)
        ]
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) == 88


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_einsum_of_an_entry_has_its_extents_and_dtype(dtype: str) -> None:
    """Run-time extents are parameters with a value, all others are numbers."""
    for entry in ENTRIES:
        einsum = entry.einsum(dtype)
        assert {op.dtype.name for op in einsum.operands} == {dtype}
        assert len(einsum.rows) == len(entry.rows)
        at = {SizeParam(name): n for name, n in entry.parameters.items()}
        sizes = {i: at.get(n, n) for i, n in einsum.extents.items()}
        assert sizes == dict(entry.sizes)


def test_few_operations_stay_as_they_are() -> None:
    """Scaling only ever shrinks, and never below 8."""
    for entry in read_suite("tccg"):
        n_operations = 2 * prod(entry.sizes.values())
        assert scale_sizes(entry.sizes, n_operations, n_operations) == entry.sizes
        assert set(scale_sizes(entry.sizes, n_operations, 1).values()) == {8}
