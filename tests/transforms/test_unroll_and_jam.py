"""Sums of several rows at a time: what they fit, and what they compute."""

from __future__ import annotations

import pytest

from feinsum import array, batched_einsum, einsum
from feinsum.canonical import canonicalize
from feinsum.measure import compile_kernel, open_device, verify
from feinsum.measure.cases import make_case
from feinsum.transforms import apply_spec, configurations
from feinsum.transforms.library import UNROLL_AND_JAM
from tests.transforms.functional import functional_case
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

FITTING = {
    "matrix times vector": einsum("ij,j->i", array("A", ("N", 50)), array("x", 50)),
    "run-time sums": einsum("ij,j->i", array("A", (37, "N")), array("x", "N")),
    "row sums": einsum("ij->i", array("A", (70, 33))),
    "in the middle": einsum("ijk->j", array("A", (5, "N", 21))),
    "two outputs": einsum("xij,ij->xi", array("A", (3, "N", 9)), array("B", ("N", 9))),
    "few rows": einsum("ij,j->i", array("A", (3, 40)), array("x", 40)),
    "in single precision": einsum("ij->i", array("A", (70, 33), "f4")),
    "complex": einsum("ij,j->i", array("A", (20, 9), "c16"), array("x", 9, "c16")),
    "of integers": einsum("ij->i", array("A", (70, 33), "i4")),
    "of two rows": batched_einsum(
        "ij,j->i", [[array(a, ("N", 30)), array("x", 30)] for a in "AB"]
    ),
}


@pytest.mark.parametrize("name", FITTING)
@pytest.mark.parametrize("as_functions", [False, True], ids=["arrays", "functions"])
def test_rows_together_give_what_each_gives_alone(name, as_functions):
    """At extents that no number of rows divides, and where there are fewer."""
    canonical = canonicalize(FITTING[name]).einsum
    specs = [*configurations(UNROLL_AND_JAM, canonical)]
    assert specs
    sizes = (1, 16, 37) if canonical.size_params else (1,)
    cases = [
        make_case(canonical, {x.name: n for x in canonical.size_params}) for n in sizes
    ]
    if as_functions:
        cases = [functional_case(case) for case in cases]
    for spec in specs[:: max(1, len(specs) // 3)]:
        unit = apply_spec(spec, cases[0].t_unit, cases[0].nest)
        kernel = compile_kernel(unit, open_device("host"))
        for case in cases:
            bound = kernel.bind(case.arguments)
            verify(bound, case.expected, tolerance=case.tolerance)


@pytest.mark.parametrize("subscripts", ["ij->j", "ij->", "ij->ji"])
def test_it_fits_sums_along_an_axis_of_unit_stride_alone(subscripts):
    """With results to be jammed."""
    canonical = canonicalize(einsum(subscripts, array("A", (70, 80)))).einsum
    assert not [*configurations(UNROLL_AND_JAM, canonical)]


def test_the_index_that_shares_operands_is_the_first_choice():
    """What does not depend on it is read once for all rows."""
    e = einsum("xij,ij->xi", array("A", (30, 40, 50)), array("B", (40, 50)))
    canonical = canonicalize(e)
    x = canonical.relabeling.indices["x"]
    spec = next(configurations(UNROLL_AND_JAM, canonical.einsum))
    assert spec.parameters["index"] == x
