"""What each cost means, computed another way."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from feinsum.machine import MachineModel
from feinsum.nests import (
    EstimatedTime,
    IndependentLoops,
    Lexicographic,
    NestLoop,
    Operations,
    Sizes,
    evaluate_cost,
    fuse,
    measure_sizes,
)
from tests.nests.interpret import interpret
from tests.nests.networks import (
    KERNELS,
    operands_of,
    path_of,
    random_nest,
    random_network,
)
from tests.nests.paper import BufferDimension


@pytest.fixture
def nests():
    """A hundred nests of random networks."""
    rng = np.random.default_rng(11)
    nests = []
    for _ in range(100):
        net, path = random_network(rng)
        nests.append(random_nest(net, rng, [path]))
    return nests


def test_independent_loops_are_the_dense_ones_at_the_end_of_single_terms(nests):
    """By the orders, and by what other terms share of them."""
    for nest in nests:
        found = 0
        for number, order in enumerate(nest.orders):
            shared = depth_of_sharing(fuse(nest.orders), number)
            for at in reversed(range(len(order))):
                if order[at] in nest.network.level_of or at < shared:
                    break
                found += 1
        is_small = all(len(b.indices) <= 2 for b in nest.buffers)
        cost = IndependentLoops(nest.network, max_dimension=2)
        wanted = -found if is_small else inf
        assert evaluate_cost(cost, nest.path, nest.orders) == wanted


def depth_of_sharing(forest, number, depth=0, shared=0):
    """How many loops a term shares with another one."""
    for node in forest:
        if isinstance(node, NestLoop):
            inside = leaves(node)
            if number in inside:
                now = depth + 1 if len(inside) > 1 else shared
                return depth_of_sharing(node.body, number, depth + 1, now)
    return shared


def leaves(node):
    return (
        {t for n in node.body for t in leaves(n)}
        if isinstance(node, NestLoop)
        else {node}
    )


def test_operations_are_those_that_are_executed(nests):
    """Counted while the nest is interpreted."""
    for nest in nests:
        operands = operands_of(nest.network, seed=3)
        sizes = measure_sizes(nest.network, operands)
        counted = interpret(nest, operands).n_operations
        cost = evaluate_cost(Operations(nest.network, sizes), nest.path, nest.orders)
        assert cost == pytest.approx(counted, rel=1e-12)


def test_no_nest_costs_less_than_the_bound_of_its_path(nests):
    """So a search can leave paths out by it."""
    for nest in nests:
        net = nest.network
        sizes = measure_sizes(net, operands_of(net, seed=3))
        costs = [
            BufferDimension(),
            IndependentLoops(net),
            Operations(net, sizes),
            EstimatedTime(net, sizes),
            Lexicographic(IndependentLoops(net), Operations(net, sizes)),
        ]
        for cost in costs:
            value = evaluate_cost(cost, nest.path, nest.orders)
            bound = cost.least(nest.path)
            assert bound < value or bound == pytest.approx(value, rel=1e-12), cost


class TestEstimatedTime:
    """What the estimate has to tell apart."""

    SIZES = Sizes(
        {"i": 4000, "j": 3000, "k": 2500, "r": 32, "s": 32, "a": 32},
        (4000, 489_964, 2_996_830),
    )

    def of(self, net, pairs, *orders, **machine):
        path = path_of(net, *pairs)
        cost = EstimatedTime(net, self.SIZES, MachineModel(**machine))
        return evaluate_cost(cost, path, tuple(map(tuple, orders)))

    def test_a_vector_buffer_is_better_than_a_scalar_one(self):
        """The scalar one has its products one by one: the paper's figure 6c."""
        net = KERNELS["ttmc-3"]
        vector = self.of(net, [(0, 2), (3, 1)], "ijks", "ijrs")
        scalar = self.of(net, [(0, 2), (3, 1)], "ijsk", "ijsr")
        assert scalar > 3 * vector

    def test_rows_side_by_side_are_better_than_columns(self):
        """The innermost loop has to run along the last axis of what it reads."""
        net = KERNELS["ttmc-3"]
        along = self.of(net, [(0, 2), (3, 1)], "ijks", "ijrs")
        across = self.of(net, [(0, 2), (3, 1)], "ijks", "ijsr")
        assert across > 1.2 * along

    def test_a_buffer_beyond_the_registers_costs(self):
        """With larger registers it costs less."""
        net = KERNELS["mttkrp-3"]
        small = self.of(net, [(0, 2), (3, 1)], "ijka", "ija", register_bytes=128)
        large = self.of(net, [(0, 2), (3, 1)], "ijka", "ija", register_bytes=256)
        assert small > 1.05 * large

    def test_a_buffer_along_the_tree_is_never_in_registers(self):
        """However short: 2 rows of sums cost more than the sum of a fiber."""
        net = KERNELS["mttkrp-3"]
        sizes = Sizes({"i": 3309, "j": 1609, "k": 2, "a": 32}, (3309, 420_000, 520_437))

        def time(pairs, *orders):
            cost = EstimatedTime(net, sizes, MachineModel(vector_bytes=64))
            return evaluate_cost(cost, path_of(net, *pairs), tuple(map(tuple, orders)))

        rows = time([(0, 1), (3, 2)], "ijka", "ika")
        assert rows > time([(0, 2), (3, 1)], "ijka", "ija")

    def test_rows_from_afar_cost_more_though_operations_are_equal(self):
        """With a cache that holds the factor, and with none."""
        net = KERNELS["mttkrp-3"]
        near = self.of(
            net, [(0, 2), (3, 1)], "ijka", "ija", cache_bytes={"L2": 1 << 40}
        )
        far = self.of(net, [(0, 2), (3, 1)], "ijka", "ija", cache_bytes={})
        assert far > 3 * near

    def test_wider_vectors_are_faster(self):
        """As long as the rows are longer."""
        net = KERNELS["mttkrp-3"]
        narrow = self.of(net, [(0, 2), (3, 1)], "ijka", "ija", vector_bytes=16)
        wide = self.of(net, [(0, 2), (3, 1)], "ijka", "ija", vector_bytes=64)
        assert wide < narrow

    def test_short_fibers_cost_more_than_long_ones_of_as_many_entries(self):
        """A loop that is entered more often, and more rows of the second factor."""
        net = KERNELS["mttkrp-3"]
        path = path_of(net, (0, 2), (3, 1))
        orders = (tuple("ijka"), tuple("ija"))

        def time(nodes):
            sizes = Sizes(self.SIZES.extents, nodes)
            return evaluate_cost(EstimatedTime(net, sizes), path, orders)

        assert time((4000, 2_000_000, 3_000_000)) > 1.5 * time((4000, 9_000, 3_000_000))


def test_rows_read_the_tree_once():
    """A batch has the operations of its rows, and takes less time than one by one."""
    one = KERNELS["mttkrp-3"]
    two = replace(one, n_rows=2)
    path, orders = path_of(one, (0, 2), (3, 1)), (tuple("ijka"), tuple("ija"))

    def of(cost, net):
        found = cost(net, TestEstimatedTime.SIZES)
        return evaluate_cost(found, path, orders), found.least(path)

    assert of(Operations, two) == tuple(2 * n for n in of(Operations, one))
    (batch_ns, bound), (one_ns, _) = of(EstimatedTime, two), of(EstimatedTime, one)
    assert max(one_ns, bound) < batch_ns < 2 * one_ns
