"""The search finds what trying all nests finds."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from feinsum.machine import MachineModel
from feinsum.nests import (
    EstimatedTime,
    IndependentLoops,
    Lexicographic,
    Operations,
    Sizes,
    choose_form,
    evaluate_cost,
    find_best_levels,
    find_best_nest,
    find_best_orders,
    list_level_orders,
    list_paths,
    measure_sizes,
    parse_network,
)
from feinsum.nests.search import OrderSearch
from feinsum.sparse import node_counts, random_profile, to_csf
from tests.nests.networks import (
    EXAMPLE,
    KERNELS,
    operands_of,
    path_of,
    random_network,
)
from tests.nests.paper import BufferDimension, all_orders


def costs_of(net, sizes):
    loops, operations = IndependentLoops(net, 1), Operations(net, sizes)
    small = MachineModel(register_bytes=8, cache_bytes={"L2": 64, "L3": 256})
    return [
        BufferDimension(),
        loops,
        operations,
        Lexicographic(loops, operations),
        EstimatedTime(net, sizes, small, n_threads=2),
    ]


def cheapest(net, path, cost, rule):
    values = [evaluate_cost(cost, path, o) for o in all_orders(net, rule, path)]
    finite = [v for v in values if (v[0] if isinstance(v, tuple) else v) < inf]
    return min(finite, default=None)


@pytest.mark.parametrize("seed", range(8))
def test_the_search_is_as_good_as_trying_all_nests(seed):
    """Of 160 random networks, for every cost and with every rule."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        net, path = random_network(rng, max_nests=60)
        sizes = measure_sizes(net, operands_of(net, seed=seed))
        rule = ["relative", "prefix", "relative"][rng.integers(3)]
        for cost in costs_of(net, sizes):
            found = find_best_orders(net, path, cost, rule)
            wanted = cheapest(net, path, cost, rule)
            if found is None:
                assert wanted is None
            else:
                assert found.cost == wanted
                assert evaluate_cost(cost, path, found.nest.orders) == wanted


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("mttkrp-3", "relative"),
        ("tttp", "relative"),
        ("tttp", "prefix"),
        ("sddmm", "any"),
    ],
)
def test_the_search_is_as_good_on_the_kernels_of_the_paper(name, rule):
    """On each of their paths."""
    net = KERNELS[name]
    sizes = measure_sizes(net, operands_of(net))
    for path in list_paths(net):
        for cost in costs_of(net, sizes)[:-1]:
            found = OrderSearch(net, cost, rule).best(path)
            assert (found and found[0]) == cheapest(net, path, cost, rule)


def test_the_best_of_all_paths_is_the_best_of_each():
    """Though paths are left out by their bounds."""
    for name in ("mttkrp-4", "tttp", "ttmc-3 of all modes", "dense chain"):
        net = KERNELS[name]
        sizes = measure_sizes(net, operands_of(net))
        paths = list(list_paths(net))
        for cost in costs_of(net, sizes):
            each = [find_best_orders(net, path, cost) for path in paths]
            wanted = min(found.cost for found in each if found)
            found = find_best_nest(net, cost, paths=paths)
            assert found.cost == pytest.approx(wanted, rel=1e-12)


def test_the_example_of_the_paper_is_found():
    """Section 5.3: six independent loops with buffers of two axes."""
    path = path_of(EXAMPLE, (0, 3), (4, 2), (5, 1))
    found = find_best_orders(EXAMPLE, path, IndependentLoops(EXAMPLE, 2))
    assert found.cost == -6
    assert find_best_nest(EXAMPLE, IndependentLoops(EXAMPLE, 2), "prefix").cost == -6


def test_operations_decide_where_loops_do_not():
    """TTMc: both factors may come first; the one of the last level has less to do."""
    net = KERNELS["ttmc-3"]
    sizes = Sizes({"i": 14, "j": 14, "k": 14, "r": 12, "s": 12}, (14, 150, 600))
    cost = Lexicographic(IndependentLoops(net, 2), Operations(net, sizes))
    found = find_best_nest(net, cost, paths=list(list_paths(net)))
    assert found.cost[0] == -3
    assert found.nest.path[0].result.inputs == {0, 2}
    assert found.cost[1] == pytest.approx(2 * 600 * 12 + 2 * 150 * 12 * 12)
    other = find_best_orders(net, path_of(net, (0, 1), (3, 2)), cost)
    assert other.cost[0] == -3
    assert other.cost[1] > found.cost[1]


def test_only_the_shallowest_paths_are_tried_where_they_do():
    """And deeper ones where the cost allows none of these."""
    net = KERNELS["ttmc-3"]
    found = find_best_nest(net, BufferDimension())
    assert max(len(term.indices) for term in found.nest.path) == 4

    class NotFromTheTree(BufferDimension):
        def loop(self, part, index, body):
            derived = [0 in t.result.inputs for t in part.terms]
            first = [t for t in part.terms if len(t.result.inputs) == 2]
            return inf if first and any(derived[: len(first)]) else body

    deeper = find_best_nest(net, NotFromTheTree())
    assert deeper.nest.path[0].result.inputs == {1, 2}
    assert max(len(term.indices) for term in deeper.nest.path) == 5


def test_nothing_is_found_where_nothing_is_allowed():
    """No path, however deep."""

    class Nothing(BufferDimension):
        def loop(self, part, index, body):
            return inf

    assert find_best_nest(KERNELS["mttkrp-3"], Nothing()) is None


def test_the_search_of_the_largest_kernel_is_small():
    """Of tens of thousands of billions of nests, some thousands of parts are looked at.

    What the paper's algorithm visits on one path, and what its paths share.
    """
    net = KERNELS["tttc"]
    sizes = Sizes(dict.fromkeys("ijklmn", 100) | dict.fromkeys("abcde", 8),
                  (100, 3000, 20_000, 100_000, 120_000, 130_000))  # fmt: skip
    search = OrderSearch(net, Operations(net, sizes))
    path = path_of(net, (1, 2), (6, 3), (7, 4), (8, 5), (9, 0))
    search.best(path)
    assert len(search._solutions) < 600
    found = find_best_nest(net, Operations(net, sizes), paths=list_paths(net))
    assert found.cost == find_best_nest(net, Operations(net, sizes)).cost


@pytest.mark.parametrize("name", ["mttkrp-3", "ttmc-3", "ttmc-3 of all modes"])
def test_the_order_of_the_levels_is_chosen_by_the_profile(name):
    """The cheapest of all orders is the cheapest of each, and saves time."""
    net = KERNELS[name]
    tree = random_profile((40, 30, 50), (40, 1100, 1500), seed=4)
    counts = node_counts(tree)
    extents = {**dict(zip("ijk", tree.shape, strict=True)), **dict.fromkeys("arst", 16)}

    def cost_of(candidate):
        axes = [net.inputs[0].index(i) for i in candidate.levels]
        prefixes = [frozenset(axes[: k + 1]) for k in range(3)]
        nodes = tuple(counts[prefix] for prefix in prefixes)
        assert nodes == to_csf(tree, axes).profile
        return EstimatedTime(candidate, Sizes(extents, nodes))

    each = [find_best_nest(n, cost_of(n)).cost for n in list_level_orders(net)]
    found = find_best_levels(net, cost_of)
    assert len(each) == 6
    assert found.cost == min(each) < max(each)


def test_a_large_result_is_sorted_by_the_levels():
    """Threads share no root of another index: their copies have no room, or take time.

    The profile is that of every order.
    """
    net, nodes = parse_network("ijk,ia,ja->ka"), (9000, 290_000, 300_000)
    for n_values, is_sorted in ((100_000, True), (10, False)):
        sizes = Sizes({"i": 9000, "j": 9000, "k": n_values, "a": 64}, nodes)
        costs = {
            n: find_best_nest(net, EstimatedTime(net, sizes, n_threads=n)).cost
            for n in (1, 8)
        }
        assert (costs[8] == costs[1]) == is_sorted
        assert costs[8] > costs[1] / 8
    large = sizes.extents | {"k": 100_000}
    found = find_best_levels(
        net, lambda turned: EstimatedTime(turned, Sizes(large, nodes), n_threads=8)
    )
    assert found.nest.network.levels[0] == "k"
    form = choose_form(found.nest, Sizes(large, nodes), n_threads=8)
    assert (form.is_chunked, form.has_copies) == (True, False)


@pytest.mark.parametrize("subscripts", ["ij,bjr->bir", "ijk,bjr,bkr->bir"])
def test_stacked_operands_share_one_pass_over_the_tree(subscripts):
    """Each level has one loop, which threads share, and no loop around it."""
    net = parse_network(subscripts)
    sizes = Sizes({"i": 1000, "j": 900, "k": 800, "b": 3, "r": 16},
                  (1000, 20_000, 60_000)[: len(net.levels)])  # fmt: skip
    lines = str(find_best_nest(net, EstimatedTime(net, sizes, n_threads=8)).nest).split(
        "\n"
    )
    for level, index in enumerate(net.levels):
        found = [line for line in lines if line.strip() == f"for {index}"]
        assert found == [f"{2 * level * ' '}for {index}"]


def test_dense_networks_have_fused_nests():
    """A chain of matrices, without a sparse operand: one number is kept."""
    net = parse_network("ij,jk,kl->il", sparse=None)
    assert find_best_nest(net, BufferDimension()).cost == 0


def test_an_operator_of_finite_elements_keeps_little_of_each_cell():
    """The loop over cells is around both terms, so no buffer has that index."""
    net = KERNELS["divergence"]
    sizes = Sizes({"x": 3, "r": 3, "e": 9000, "i": 20, "j": 20})
    found = find_best_nest(net, EstimatedTime(net, sizes), paths=list(list_paths(net)))
    assert all("e" not in buffer.indices for buffer in found.nest.buffers)
    assert {order[0] for order in found.nest.orders} == {"e"}
