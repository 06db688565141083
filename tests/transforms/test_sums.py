"""Families for sums: what they fit, and what they compute."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import loopy as lp
import pytest
from pymbolic.primitives import Variable

from feinsum import array, batched_einsum, canonicalize, einsum
from feinsum.errors import InvalidParameterError
from feinsum.measure import compile_kernel, open_device, verify
from feinsum.measure.cases import Case, make_case
from feinsum.measure.reference import NEVER_LONG
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.transforms import apply_spec, check_spec, list_configurations
from feinsum.transforms.library import (
    GENERIC,
    PACKED_CONTRACTION,
    ROWWISE_ON_CPUS,
    SPLIT_SUM,
)
from tests.cpus import CPUS, opened
from tests.portions import spread
from tests.transforms.support import (
    EINSUMS,
    LOOPY_WARNINGS,
    OPERATORS,
    generated,
    ragged_sizes,
)

pytestmark = LOOPY_WARNINGS

JAMMED = {
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


@pytest.mark.parametrize(
    ("name", "as_functions"),
    [(name, k % 2 == 1) for k, name in enumerate(JAMMED)],
)
def test_rows_together_give_what_each_gives_alone(name, as_functions):
    """At extents that no number of rows divides, and where there are fewer."""
    canonical = canonicalize(JAMMED[name]).einsum
    specs = [
        spec
        for spec in list_configurations(GENERIC, canonical)
        if spec.parameters["vector"] in canonical.summation_indices
    ]
    assert {spec.parameters["step"] for spec in specs} >= {1, 2}
    sizes = (1, 16, 37) if canonical.size_params else (1,)
    cases = [
        make_case(canonical, {x.name: n for x in canonical.size_params}) for n in sizes
    ]
    if as_functions:
        cases = [functional_case(case) for case in cases]
    for spec in specs[:: max(1, len(specs) // 3)]:
        assert_right(spec, cases)


def assert_right(spec, cases):
    """One kernel is right for all sizes."""
    unit = apply_spec(spec, cases[0].t_unit, cases[0].nest)
    kernel = compile_kernel(unit, open_device("host"))
    for case in cases:
        bound = kernel.bind(case.arguments)
        verify(bound, case.expected, tolerance=case.tolerance)


LONG_SUMS = {
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


@pytest.mark.parametrize(
    ("name", "number"), spread(product(LONG_SUMS, range(3)), len(LONG_SUMS) + 5)
)
def test_the_sum_of_parts_is_the_sum(name, number):
    """For every index and every number of parts: the first three that there are."""
    canonical = canonicalize(LONG_SUMS[name]).einsum
    case = make_case(canonical, {x.name: 5 for x in canonical.size_params})
    specs = [*list_configurations(SPLIT_SUM, canonical)]
    assert specs
    assert_right(specs[number % len(specs)], [case])


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
    assert not [*list_configurations(SPLIT_SUM, canonical)]


def test_parts_that_are_not_equal_are_refused():
    """The error says which number does not divide."""
    canonical = canonicalize(LONG_SUMS["sum of all"]).einsum
    spec = SPLIT_SUM.spec({"index": "a", "parts": 16})
    with pytest.raises(InvalidParameterError, match="16"):
        check_spec(spec, canonical)


IN_WHOLE_TILES = [(6, 7), (12, 40), (3, 128)]
"""Of two summed indices; the depth of a tile is 64."""
IN_CUT_TILES = [(5, 67), ("K", 5)]
TILED = [*IN_WHOLE_TILES, *IN_CUT_TILES]


def of_two_sums(e, f):
    """Each operand lies along another one of the summed indices."""
    return einsum(
        "aebf,dfce->abcd", array("A", (9, e, 5, f)), array("B", (17, f, 3, e))
    )


@cache
def in_packed_tiles(extents):
    case = generated(canonicalize(of_two_sums(*extents)).einsum)
    first = next(list_configurations(PACKED_CONTRACTION, case.einsum)).parameters
    return case, case.apply(PACKED_CONTRACTION.spec({**first, "depth": 64}))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("extents", TILED, ids=str)
def test_joined_sums_are_right(extents, cpu):
    """Whether tiles divide the sums or not."""
    case, unit = in_packed_tiles(extents)
    sizes = [{x.name: n} for x in case.einsum.size_params for n in (1, 13, 67)]
    case.assert_right(unit, sizes or [{}], cpu)


@pytest.mark.parametrize("extents", TILED, ids=str)
def test_whole_tiles_are_summed_in_one_loop(extents):
    """Loops of registers and of free indices aside."""
    case, unit = in_packed_tiles(extents)
    summed = set(case.einsum.summation_indices)
    (kernel,) = unit.callables_table.values()
    loops = [i for i in kernel.subkernel.all_inames() if i.startswith("sum_")]
    over_sums = [i for i in loops if i.removeprefix("sum_").split("_")[0] in summed]
    assert len(over_sums) == (1 if extents in IN_WHOLE_TILES else 2)


def by_rows(case):
    spec = next(list_configurations(ROWWISE_ON_CPUS, case.einsum))
    return apply_spec(spec, case.t_unit, case.nest)


def tiles(case):
    """The shapes of the tiles, by the operands that are in them."""
    unit = by_rows(case)
    temporaries = unit[case.nest.kernel_name].temporary_variables
    return {name.partition("_")[0]: t.shape for name, t in temporaries.items()}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", spread(OPERATORS, 4))
def test_functions_give_what_their_values_give(name, cpu):
    """At sizes that no block divides."""
    e = EINSUMS[name]
    sizes = max(ragged_sizes(e), key=lambda sizes: sum(sizes.values()), default={})
    case = functional_case(make_case(e, sizes))
    kernel = compile_kernel(by_rows(case), opened(cpu)).bind(case.arguments)
    error = verify(kernel, case.expected, tolerance=case.tolerance)
    assert error <= case.tolerance


FACES = EINSUMS["face mass"]
"""Of which J and u are needed by all entries of an element, and L by all elements."""


@pytest.mark.parametrize(
    ("e", "as_functions", "expected"),
    [
        (FACES, True, {"J": (4,), "u": (4, 6)}),
        (FACES, False, {}),
        (einsum("ei,ei->ei", *(array(x, ("N", 5)) for x in "ab")), True, {}),
        (einsum("ei->e", array("a", ("N", 5))), True, {}),
    ],
    ids=str,
)
def test_what_entries_of_the_output_share_is_evaluated_once(e, as_functions, expected):
    """For each value of the index, as far as it depends on that. To read arrays again
    costs less than to copy them; what one entry needs is evaluated once anyway.
    """
    case = make_case(e, {"N": 37})
    assert tiles(functional_case(case) if as_functions else case) == expected


@pytest.mark.parametrize(
    ("extent", "has_tile"), [(2048, True), (2049, False), ("K", False)]
)
def test_long_rows_have_no_tile(extent, has_tile):
    """Its values would not stay in the first cache."""
    e = einsum("ij,kj->ik", array("A", ("N", extent)), array("B", (3, extent)))
    assert ("A" in tiles(functional_case(make_case(e, {"N": 64, "K": 7})))) == has_tile


def functional_case(case: Case) -> Case:
    """The same case with functions as operands: each is an array times a scalar.

    The scalars are 1 but known only at run time, so results stay the same.
    """
    einsum, kernel = case.einsum, case.t_unit.default_entrypoint
    rules, factors = dict(kernel.substitutions), {}
    unique = kernel.get_var_name_generator()
    for op in einsum.operands:
        name = unique(f"factor_{op.name}")
        factors[name] = op.dtype.type(1)
        rule = rules[case.nest.rules[op.name]]
        rules[rule.name] = rule.copy(expression=Variable(name) * rule.expression)
    scalars = [lp.ValueArg(name, value.dtype) for name, value in factors.items()]
    changed = kernel.copy(substitutions=rules, args=[*kernel.args, *scalars])
    t_unit, nest = identify_as_einsum(
        case.t_unit.with_kernel(changed), einsum, long_extent=NEVER_LONG
    )
    arguments = {**case.arguments, **factors}
    return replace(case, t_unit=t_unit, nest=nest, arguments=arguments)


def test_tiles_of_one_row_leave_no_remainder():
    """Loopy refuses a loop that is empty for every value of a run-time extent."""
    e = einsum("ij,j->i", array("A", ("N", 23)), array("B", 23))
    spec = TransformSpec.parse(
        "generic@3(block=256, parallel='a', step=1, vector='b', vectors='usual', "
        "width=1024)"
    )
    case = generated(canonicalize(e).einsum)
    kernel = apply_spec(spec, case.t_unit, case.nest).default_entrypoint
    assert not [domain for domain in kernel.domains if domain.is_empty()]
