"""Nests compute what numpy computes, with as many operations as the formulas say."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from feinsum.errors import InvalidEinsumError
from feinsum.nests import (
    EstimatedTime,
    IndependentLoops,
    Nest,
    Operations,
    find_best_nest,
    list_paths,
    measure_sizes,
)
from feinsum.sparse import COO, to_csf
from tests.nests.interpret import interpret
from tests.nests.networks import (
    FORMULAS,
    KERNELS,
    expected,
    operands_of,
    path_of,
    random_nest,
    random_network,
)
from tests.nests.paper import BufferDimension
from tests.portions import spread

SMALL = {"tttc": 2, "tucker": 2, "mttkrp-5": 2, "ttmc-4": 2}


@cache
def paths_of(name):
    """All paths of a network."""
    return list(list_paths(KERNELS[name]))


def operands_for(name, **options):
    net = KERNELS[name]
    return operands_of(net, extent=SMALL.get(name, 3), **options)


def assert_equal_to_numpy(nest, operands):
    found = interpret(nest, operands).result
    assert np.allclose(found, expected(nest.network, operands), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", spread(KERNELS, 9))
def test_any_nest_computes_what_numpy_computes(name):
    """Of random paths and orders, most of which nobody would choose."""
    rng = np.random.default_rng(7)
    operands = operands_for(name, density=0.3)
    for _ in range(3 if name in SMALL else 8):
        assert_equal_to_numpy(random_nest(KERNELS[name], rng, paths_of(name)), operands)


@pytest.mark.parametrize("name", spread(KERNELS, 9))
def test_the_best_nests_compute_what_numpy_computes(name):
    """By each cost."""
    net = KERNELS[name]
    operands = operands_for(name)
    sizes = measure_sizes(net, operands)
    for cost in (
        BufferDimension(),
        IndependentLoops(net),
        Operations(net, sizes),
        EstimatedTime(net, sizes),
    ):
        if name != "tucker" or isinstance(cost, Operations | EstimatedTime):
            assert_equal_to_numpy(find_best_nest(net, cost).nest, operands)


def test_nests_of_random_networks_compute_what_numpy_computes():
    """Eighty, with any order of levels."""
    rng = np.random.default_rng(8)
    for seed in range(80):
        net, path = random_network(rng)
        assert_equal_to_numpy(
            random_nest(net, rng, [path]), operands_of(net, seed=seed)
        )


@pytest.mark.parametrize("name", ["spmv", "mttkrp-3", "tttp", "full sum"])
def test_patterns_may_be_ragged(name):
    """No entry, one, empty slices, and all of them."""
    rng = np.random.default_rng(10)
    for nnz in (0, 1, 2, 10_000):
        operands = operands_for(name, nnz=nnz)
        assert_equal_to_numpy(random_nest(KERNELS[name], rng, paths_of(name)), operands)


@pytest.mark.parametrize(("name", "pairs", "orders", "formula"), FORMULAS)
def test_operations_are_those_of_the_formulas(name, pairs, orders, formula):
    """Source: section 2.4 of the paper; the numbers are counted one by one."""
    net = KERNELS[name]
    nest = Nest(net, path_of(net, *pairs), tuple(map(tuple, orders)))
    for density in (0.1, 1.0):
        operands = operands_of(net, extent=4, density=density)
        sizes = measure_sizes(net, operands)
        counted = interpret(nest, operands).n_operations
        assert counted == formula(sizes.nodes, sizes.extents)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o[:2], "2 operands"),
        (lambda o: [o[1], o[1], o[2]], "operand 0"),
        (lambda o: [o[0], o[0], o[2]], "operand 1"),
        (lambda o: [to_csf(o[0], (2, 1, 0)), *o[1:]], "levels"),
        (lambda o: [o[0], o[1][:2], o[2]], "index 'j' has extent 2 on operand 1"),
        (lambda o: [o[0], o[1][0], o[2]], "1 axis"),
        (lambda o: [COO((1,), ([0],), [1.0]), *o[1:]], "operand 0"),
    ],
)
def test_operands_that_do_not_fit_are_refused(change, message):
    """With the rule ``shape``."""
    net = KERNELS["mttkrp-3"]
    nest = random_nest(net, np.random.default_rng(0))
    with pytest.raises(InvalidEinsumError, match=message) as caught:
        interpret(nest, change(operands_of(net)))
    assert caught.value.rules == ("shape",)
