"""The search of loop nests has a say where all operands are dense."""

from __future__ import annotations

from itertools import pairwise

import pytest

from feinsum import array, einsum
from feinsum.ir import Workload
from feinsum.measure import compile_kernel, open_device, verify
from feinsum.measure.cases import make_case
from feinsum.nests import EstimatedTime, Network, Sizes, best_nest
from feinsum.transforms import apply_spec
from feinsum.transforms.library import CONTRACTION_PATH
from feinsum.transforms.library.paths.pairwise import cheapest_path
from tests.transforms.support import EINSUMS, LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS
CHAINS = "chains over one index"


def test_a_search_begins_with_the_cheapest_nest():
    """Chains over one index are fused along it, and the result is right."""
    e = EINSUMS[CHAINS]
    (start,) = CONTRACTION_PATH.starts(Workload(e))
    assert start["fused"] == "b"
    case = make_case(e, {x.name: 70 for x in e.size_params})
    spec = CONTRACTION_PATH.spec(start)
    made = apply_spec(spec, case.t_unit, case.nest)
    kernel = compile_kernel(made, open_device("host")).bind(case.arguments)
    verify(kernel, case.expected, tolerance=case.tolerance)


@pytest.mark.parametrize(
    "pairs", [[(0, 1), (0, 1)], [(1, 2), (0, 1)], [(0, 2), (0, 1)]]
)
def test_one_path_is_the_cheapest_of_itself(pairs):
    """Positions are those of what is left, the product at the end."""
    e = einsum("ij,jk,kl->il", *[array(n, (64, 64)) for n in "ABC"])
    extents = dict.fromkeys("ijkl", 64)
    assert cheapest_path(e, [pairs], extents)[0] == 0


def test_the_cheapest_path_is_that_of_the_search():
    """Of all paths of a chain it is the one whose nest costs the least."""
    sizes = {"A": (900, 8), "B": (8, 900), "C": (900, 7)}
    e = einsum("ij,jk,kl->il", *[array(n, shape) for n, shape in sizes.items()])
    extents = {"i": 900, "j": 8, "k": 900, "l": 7}
    every = [[(0, 1), (0, 1)], [(1, 2), (0, 1)], [(0, 2), (0, 1)]]
    number, _ = cheapest_path(e, every, extents)
    network = Network(e.inputs, e.output)
    cost = EstimatedTime(network, Sizes(extents))
    best = best_nest(network, cost)
    assert number == 1
    assert {frozenset({1}), frozenset({2})} == {
        best.nest.path[0].left.inputs, best.nest.path[0].right.inputs
    }  # fmt: skip


def test_what_the_search_is_not_for_gets_no_start():
    """An index twice in one term, and many operands."""
    diagonal = einsum("eii,ij->ej", array("A", (9, 4, 4)), array("B", (4, 4)))
    assert cheapest_path(diagonal, [[(0, 1)]], {"e": 9, "i": 4, "j": 4}) is None
    letters = "abcdefgh"
    terms = ",".join(map("".join, pairwise(letters)))
    many = einsum(f"{terms}->ah", *[array(f"M{k}", (80, 80)) for k in range(7)])
    assert CONTRACTION_PATH.fits(many)
    assert CONTRACTION_PATH.starts(Workload(many)) == ()
