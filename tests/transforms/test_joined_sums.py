"""Sums over several indices: register tiles add them up in one loop where they can."""

from __future__ import annotations

import pytest

from feinsum import array, canonicalize, einsum
from feinsum.transforms import configurations
from feinsum.transforms.library import PACKED_CONTRACTION
from tests.cpus import CPUS
from tests.transforms.support import LOOPY_WARNINGS, generated

pytestmark = LOOPY_WARNINGS

IN_WHOLE_TILES = [(6, 7), (7, 50), (12, 40), (40, 12), (3, 128)]
"""Of two summed indices; the depth of a tile is 64."""
IN_CUT_TILES = [(5, 67), (67, 5), ("K", 5)]
ALL = [*IN_WHOLE_TILES, *IN_CUT_TILES]


def sketch(e, f):
    """Each operand lies along another one of the summed indices."""
    return einsum(
        "aebf,dfce->abcd", array("A", (9, e, 5, f)), array("B", (17, f, 3, e))
    )


def transformed(extents):
    case = generated(canonicalize(sketch(*extents)).einsum)
    first = next(configurations(PACKED_CONTRACTION, case.einsum)).parameters
    return case, case.apply(PACKED_CONTRACTION.spec({**first, "depth": 64}))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("extents", ALL, ids=str)
def test_sums_are_right(extents, cpu):
    """Whether tiles divide the sums or not."""
    case, unit = transformed(extents)
    sizes = [{x.name: n} for x in case.einsum.size_params for n in (1, 13, 67)]
    case.assert_right(unit, sizes or [{}], cpu)


@pytest.mark.parametrize("extents", ALL, ids=str)
def test_whole_tiles_are_summed_in_one_loop(extents):
    """Loops of registers and of free indices aside."""
    case, unit = transformed(extents)
    summed = set(case.einsum.summation_indices)
    (kernel,) = unit.callables_table.values()
    loops = [i for i in kernel.subkernel.all_inames() if i.startswith("sum_")]
    over_sums = [i for i in loops if i.removeprefix("sum_").split("_")[0] in summed]
    assert len(over_sums) == (1 if extents in IN_WHOLE_TILES else 2)
