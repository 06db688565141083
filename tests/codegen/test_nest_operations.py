"""Generated kernels do as many operations as the formulas say."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.nests import (
    EstimatedTime,
    Nest,
    NestForm,
    Operations,
    best_nest,
    evaluate,
    lane_indices,
    path_from_pairs,
    sizes_of,
    unfactorized,
)
from feinsum.nests.form import is_apart, is_divisible
from tests.codegen.instrumented import executed
from tests.nests.networks import FORMULAS, KERNELS, expected, operands_of


def forms_of(nest):
    """Without lanes, with them, with tiles; each also by chunks."""
    lanes = sorted(lane_indices(nest))
    found = [NestForm()]
    found += [NestForm(i, 2, tile=t) for i in lanes for t in (0, 2, 4)]
    if is_divisible(nest):
        copies = not is_apart(nest.network)
        more = {"is_chunked": True, "has_copies": copies}
        found += [NestForm(f.lane, f.lanes, tile=f.tile, **more) for f in found]
    return found


@pytest.mark.parametrize(("name", "pairs", "orders", "formula"), FORMULAS)
def test_operations_are_those_of_the_formulas_in_every_form(
    name, pairs, orders, formula
):
    """Lanes that are filled up count as entries; nothing else is added."""
    net = KERNELS[name]
    operands = operands_of(net, extent=4, density=0.3)
    nest = Nest(net, path_from_pairs(net, pairs), tuple(map(tuple, orders)))
    sizes = sizes_of(net, operands)
    for form in forms_of(nest):
        result, n_operations, _ = executed(nest, operands, form)
        assert np.allclose(result, expected(net, operands))
        assert n_operations == formula(sizes.nodes, form.filled(sizes.extents))


@pytest.mark.parametrize("name", ["mttkrp-3", "ttmc-3", "tttp", "tttc", "tucker"])
def test_the_best_nest_does_what_its_cost_says(name):
    """In scalars and in vectors; a product that is assigned needs no addition."""
    net = KERNELS[name]
    operands = operands_of(net, extent=2, density=0.5)
    sizes = sizes_of(net, operands)
    nest = best_nest(net, EstimatedTime(net, sizes)).nest
    cost = evaluate(Operations(net, sizes), nest.path, nest.orders)
    result, n_operations, _ = executed(nest, operands, NestForm())
    assert np.allclose(result, expected(net, operands))
    assert cost / 2 <= n_operations <= round(cost)


def test_the_unfactorized_nest_takes_three_operations_for_a_product():
    """Two multiplications and an addition: 3 nnz A for MTTKRP."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net, extent=4, density=0.3)
    sizes = sizes_of(net, operands)
    for form in forms_of(unfactorized(net)):
        result, n_operations, _ = executed(unfactorized(net), operands, form)
        assert np.allclose(result, expected(net, operands))
        rank = form.filled(sizes.extents)["a"]
        assert n_operations == 3 * sizes.nodes[-1] * rank


def test_each_tile_reads_the_tree_once():
    """The rank is cut, and not the work."""
    net = KERNELS["mttkrp-3"]
    operands = operands_of(net, extent=8, density=0.2)
    nest = Nest(net, path_from_pairs(net, [(0, 2), (3, 1)]), (tuple("ijka"),
                tuple("ija")))  # fmt: skip
    whole = executed(nest, operands, NestForm("a", 2))[1]
    assert executed(nest, operands, NestForm("a", 2, tile=4))[1] == whole
