"""Sums in parts: what they fit, and what they compute."""

from __future__ import annotations

import pytest

from feinsum import array, batched_einsum, einsum
from feinsum.canonical import canonicalize
from feinsum.errors import InvalidParameterError
from feinsum.measure import compile_kernel, open_device, verify
from feinsum.measure.cases import make_case
from feinsum.transforms import apply_spec, check_spec, configurations
from feinsum.transforms.library import SPLIT_SUM
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

FITTING = {
    "sum of all": einsum("ij->", array("A", (300, 301))),
    "inner product": einsum("i,i->", array("x", 70_000), array("y", 70_000)),
    "with itself": einsum("i,i->", array("x", 70_000), array("x", 70_000)),
    "column sums": einsum("ij->j", array("A", (40_000, 7))),
    "transposed": einsum("ij,ji->", array("A", (200, 210)), array("B", (210, 200))),
    "in single precision": einsum("ij->", array("A", (300, 300), "f4")),
    "of integers": einsum("ij->", array("A", (300, 300), "i8")),
    "of run-time length": einsum("ijk->k", array("A", (200, 200, "N"))),
    "of two rows": batched_einsum(
        "i,i->", [[array(a, 70_000), array(b, 70_000)] for a, b in ("xy", "uy")]
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_the_sum_of_parts_is_the_sum(name):
    """For every index and every number of parts."""
    canonical = canonicalize(FITTING[name]).einsum
    case = make_case(canonical, {x.name: 5 for x in canonical.size_params})
    specs = [*configurations(SPLIT_SUM, canonical)]
    assert specs
    for spec in specs[:3]:
        unit = apply_spec(spec, case.t_unit, case.nest)
        kernel = compile_kernel(unit, open_device("host")).bind(case.arguments)
        verify(kernel, case.expected, tolerance=case.tolerance)


@pytest.mark.parametrize(
    ("subscripts", "shape"),
    [
        ("ij->i", (5000, 90)),
        ("ij->", (20, 30)),
        ("i->", (65_537,)),
        ("ij->i", (40, 90)),
    ],
)
def test_it_fits_long_sums_with_few_results_alone(subscripts, shape):
    """And those that have equal parts: a prime has none."""
    canonical = canonicalize(einsum(subscripts, array("A", shape))).einsum
    assert not [*configurations(SPLIT_SUM, canonical)]


def test_parts_that_are_not_equal_are_refused():
    """The error says which number does not divide."""
    canonical = canonicalize(FITTING["sum of all"]).einsum
    spec = SPLIT_SUM.spec({"index": "a", "parts": 16})
    with pytest.raises(InvalidParameterError, match="16"):
        check_spec(spec, canonical)
