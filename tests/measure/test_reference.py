"""One reference is asked for whatever an einsum means and takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feinsum import array, einsum
from feinsum.errors import InvalidEinsumError, MeasurementError
from feinsum.ir import BatchedEinsum, Workload, evaluate, sparse_array
from feinsum.measure import (
    MinimumWork,
    count_footprint_bytes,
    count_operations,
    count_terms,
    make_reference,
)
from feinsum.measure.cases import make_case, make_ragged_cases
from feinsum.measure.reference import REFERENCES, Reference

SPARSE = einsum("ij,j->i", sparse_array("A", (9, 4)), array("x", 4))


def dense(e: BatchedEinsum) -> BatchedEinsum:
    """The same einsum, every entry of its arrays stored."""
    rows = tuple(tuple(replace(op, storage="") for op in row) for row in e.rows)
    return replace(e, rows=rows)


class ByEntries(Reference):
    """A made-up reference: two operations for each entry of the sparse operand."""

    nodes: tuple[int, ...] = ()

    def operations(self, sizes):
        return {"<f8": 2 * self.nodes[-1] if self.nodes else 1}


def by_entries(workload):
    made = ByEntries(dense(workload.einsum))
    object.__setattr__(made, "nodes", workload.nodes)
    return made


@pytest.mark.parametrize(
    "asked",
    [
        lambda: make_reference(SPARSE),
        lambda: make_case(SPARSE, {}),
        lambda: make_ragged_cases(SPARSE),
        lambda: count_operations(SPARSE, {}),
        lambda: count_footprint_bytes(SPARSE, {}),
        lambda: count_terms(SPARSE, {}),
        lambda: MinimumWork.of(SPARSE, {}),
    ],
)
def test_a_kind_without_a_reference_is_refused_by_name(asked, monkeypatch):
    """Nothing is counted as if it were dense."""
    monkeypatch.delitem(REFERENCES, "sparse")
    with pytest.raises(InvalidEinsumError, match=r"operand 'A' .* is sparse"):
        asked()


def test_a_sparse_operand_is_counted_by_its_profile():
    """Without it nothing is; and its kernels are those of recipes."""
    sizes = {"nodes.0": 3, "nodes.1": 5}
    assert count_operations(SPARSE, sizes) == {"<f8": 10}
    assert count_footprint_bytes(SPARSE, sizes) == 5 * 8 + 4 * (3 + 5 + 3) + 8 * (4 + 9)
    for count in (count_operations, count_footprint_bytes):
        with pytest.raises(MeasurementError, match=r"nodes\.0"):
            count(SPARSE, {})
    with pytest.raises(InvalidEinsumError, match="is sparse"):
        make_case(SPARSE, {})


def test_a_new_kind_costs_one_entry(monkeypatch):
    """Cases, ragged sizes, baselines and counts are then all its own."""
    monkeypatch.setitem(REFERENCES, "sparse", by_entries)
    case = make_case(SPARSE, {})
    plain = dense(SPARSE)
    (expected,) = evaluate(plain, {n: case.arguments[n] for n in "Ax"})
    np.testing.assert_allclose(case.expected["out"], expected)
    assert make_ragged_cases(SPARSE) == make_ragged_cases(plain)
    assert make_reference(SPARSE).baseline({}) is None
    work = MinimumWork.of(Workload(SPARSE, {"nodes.0": 3, "nodes.1": 5}), {})
    assert work.operations == {"<f8": 10}
    assert work.footprint_bytes == count_footprint_bytes(plain, {})
    assert count_terms(SPARSE, {}) == 4


def test_what_is_known_of_the_pattern_reaches_the_reference(monkeypatch):
    """A workload has the profile, an einsum has none."""
    monkeypatch.setitem(REFERENCES, "sparse", by_entries)
    assert count_operations(SPARSE, {}) == {"<f8": 1}
    assert count_operations(Workload(SPARSE, {"nodes.0": 2, "nodes.1": 7}), {}) == {
        "<f8": 14
    }
