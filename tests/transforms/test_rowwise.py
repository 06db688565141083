"""Rows of plain loops: a function is evaluated once, and arrays stay where they are."""

from __future__ import annotations

import pytest

from feinsum import array, einsum
from feinsum.measure import compile_kernel, verify
from feinsum.measure.cases import make_case
from feinsum.transforms import apply_spec, configurations
from feinsum.transforms.library import ROWWISE_ON_CPUS
from tests.cpus import CPUS, opened
from tests.transforms.functional import functional_case
from tests.transforms.support import EINSUMS, LOOPY_WARNINGS, OPERATORS, ragged_sizes

pytestmark = LOOPY_WARNINGS


def transformed(case):
    spec = next(configurations(ROWWISE_ON_CPUS, case.einsum))
    return apply_spec(spec, case.t_unit, case.nest)


def tiles(case):
    """The shapes of the tiles, by the operands that are in them."""
    unit = transformed(case)
    temporaries = unit[case.nest.kernel_name].temporary_variables
    return {name.partition("_")[0]: t.shape for name, t in temporaries.items()}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", OPERATORS)
def test_functions_give_what_their_values_give(name, cpu):
    """At sizes that no block divides."""
    e = EINSUMS[name]
    sizes = max(ragged_sizes(e), key=lambda sizes: sum(sizes.values()), default={})
    case = functional_case(make_case(e, sizes))
    kernel = compile_kernel(transformed(case), opened(cpu)).bind(case.arguments)
    verify(kernel, case.expected, tolerance=case.tolerance)


FACES = EINSUMS["face mass"]
"""Of which J and u are needed by all entries of an element, and L by all elements."""


def test_what_entries_of_the_output_share_is_evaluated_once():
    """For each value of the index, as far as it depends on that."""
    case = functional_case(make_case(FACES, {"N": 37}))
    assert tiles(case) == {"J": (4,), "u": (4, 6)}


def test_arrays_stay_where_they_are():
    """To read them again costs less than to copy them."""
    assert tiles(make_case(FACES, {"N": 37})) == {}


@pytest.mark.parametrize(
    "e",
    [
        einsum("ei,ei->ei", array("a", ("N", 5)), array("b", ("N", 5))),
        einsum("ei->e", array("a", ("N", 5))),
    ],
    ids=str,
)
def test_what_is_evaluated_once_anyway_has_no_tile(e):
    """One entry of the output needs it."""
    assert tiles(functional_case(make_case(e, {"N": 37}))) == {}


@pytest.mark.parametrize(
    ("extent", "has_tile"), [(2048, True), (2049, False), ("K", False)]
)
def test_long_rows_have_no_tile(extent, has_tile):
    """Its values would not stay in the first cache."""
    e = einsum("ij,kj->ik", array("A", ("N", extent)), array("B", (3, extent)))
    assert ("A" in tiles(functional_case(make_case(e, {"N": 64, "K": 7})))) == has_tile
